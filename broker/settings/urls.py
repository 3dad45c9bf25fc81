"""URLs in messages: without what may be a secret in them.

A user and password before the host, the path of a URL of HTTP (webhooks of chat services have their key there), and any
query are replaced. Scheme, host and port stay, which say where the broker connects to.
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
    """A text for a message; of URLs in it, what may be secret is hidden."""
    if "://" not in text:
        return text
    text = _USER.sub(f"{HIDDEN}@", text)
    return _QUERY.sub(rf"\1?{HIDDEN}", _PATH.sub(rf"\1/{HIDDEN}", text))
