"""A plug-in whose process ends without a word, while a file is there that the environment names."""

from __future__ import annotations

import os


class Plugin:
    """Ends its process when it is made."""

    def __init__(self) -> None:
        if os.path.exists(os.environ["DIES_WHILE"]):
            os._exit(7)

    def stop(self) -> None:
        """A hook, without which it would be no plug-in."""
