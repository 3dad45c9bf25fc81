"""A plug-in that needs what is not installed."""

from nothing_of_the_kind import X as X  # type: ignore[import-not-found]
