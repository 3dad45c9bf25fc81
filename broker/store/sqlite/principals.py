"""A client's principal as the text that stands in the table of sessions, and back.

Owns the names in that text. Rules that a token brought are objects of the security room: they are kept by whoever was
given to `Rules`, as plain values.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from broker.core.principal import Principal

Plain = Callable[[tuple[object, ...]], list[object]]


def write_principal(value: object) -> str:
    """The text of a principal."""
    assert isinstance(value, Principal)
    fields: dict[str, object] = {"user_name": value.user_name}
    if value.groups:
        fields["groups"] = list(value.groups)
    if value.attributes:
        fields["attributes"] = value.attributes
    if value.expires_at:
        fields["expires_at"] = value.expires_at
    for name in ("certificate", "listener", "host", "authenticator"):
        if text := getattr(value, name):
            fields[name] = text
    return json.dumps(fields, ensure_ascii=False)


def read_principal(text: str, client_id: str) -> Principal:
    """The principal of such a text. Raises ValueError, TypeError or KeyError: it is none."""
    fields = json.loads(text)
    return Principal(
        fields["user_name"],
        tuple(fields.get("groups", ())),
        fields.get("attributes"),
        fields.get("expires_at", 0.0),
        (),
        fields.get("certificate", ""),
        client_id,
        fields.get("listener", ""),
        fields.get("host", ""),
        fields.get("authenticator", ""),
    )
