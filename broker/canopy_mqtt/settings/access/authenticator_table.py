"""The keys that `[[authenticator]]` tables of all types share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import ConfigDict, Field

from canopy_mqtt.settings.values import Section

FilePath: TypeAlias = Annotated[str, Field(min_length=1)]


class AuthenticatorTable(Section):
    """The keys of all types."""

    # As for links: an error that repeats what it was given would repeat secrets.
    model_config = ConfigDict(hide_input_in_errors=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,64}\z")] = ""
    """The name in logs and in `listener.authenticators`, unique among all. 1 to 64 letters, digits, `_` and `-`. Empty:
    its type."""
