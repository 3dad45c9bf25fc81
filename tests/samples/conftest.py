"""The projects here have tests of their own, which run in a process of their own: `test_samples.py` starts them."""

from __future__ import annotations

collect_ignore_glob = ["sensor_app/*"]
