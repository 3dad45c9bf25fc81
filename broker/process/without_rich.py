"""structlog, without rich.

structlog imports rich, and with it pygments, wherever they are installed, to draw traces. The broker's log draws none,
so a daemon would import them for nothing: a seventh of the time until it serves. Who needs rich imports it as ever.
"""

from __future__ import annotations

import sys

if "rich" in sys.modules:
    import structlog
else:
    # "No such module", while structlog asks.
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog
    finally:
        del sys.modules["rich"]

__all__ = ["structlog"]
