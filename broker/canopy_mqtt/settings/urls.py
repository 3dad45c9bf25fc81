"""Removes possible secrets from URLs in messages.

It replaces user and password before the host, the path of an HTTP URL (webhooks of chat services have their key there),
and any query. It keeps scheme, host and port, which tell where the broker connects to.
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"
"""Replaces a secret."""

_USER: Final = re.compile(r"(?<=://)[^/]*@")
_PATH: Final = re.compile(r"(\bhttps?://[^/?#\s]+)(?:/|/?[?#])(?=\S)\S*")
_QUERY: Final = re.compile(r"(\b[a-z+]+://[^?\s]*)\?\S+")


def shown(text: str) -> str:
    """Return a text for a message, with the possible secrets of its URLs hidden."""
    if "://" not in text:
        return text
    text = _USER.sub(f"{HIDDEN}@", text)
    return _QUERY.sub(rf"\1?{HIDDEN}", _PATH.sub(rf"\1/{HIDDEN}", text))
