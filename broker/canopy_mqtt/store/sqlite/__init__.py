"""A store on disk: one SQLite file, written in groups by its own thread.

Owns everything between the journal and the file: `journal` collects changes into groups (`group`), `writer` writes
those, `sweeping` removes what ended sessions left, `store` decides when, and what happens if that fails; `opening` and
`reading` run before a broker serves. `schema` is what an operator sees.
"""

from __future__ import annotations

from canopy_mqtt.store.group_commit.principals import RuleTexts
from canopy_mqtt.store.sqlite.store import SqliteStore

__all__ = ["RuleTexts", "SqliteStore"]
