"""The version of Canopy: its one home, which the build reads too."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
