"""What the tables of `[[authenticator]]` have in common, whatever their type."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import ConfigDict, Field

from broker.settings.values import Section

FilePath: TypeAlias = Annotated[str, Field(min_length=1)]


class AuthenticatorTable(Section):
    """What tables of all types have in common."""

    # As for links: an error that repeats what it was given would repeat secrets.
    model_config = ConfigDict(hide_input_in_errors=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,64}\z")] = ""
    """What it is called in logs and in `listener.authenticators`; no other has the same. 1 to 64 letters, digits, `_`
    and `-`. Empty: its type."""
