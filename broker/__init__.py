"""The broker of Canopy. Programs import `canopy`, which has the public names; here is the version alone."""

from __future__ import annotations

from broker.version import __version__

__all__ = ["__version__"]
