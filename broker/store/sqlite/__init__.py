"""A store on disk: one SQLite file, written in groups by a thread of its own.

Owns everything between the journal's notes and the file: `journal` gathers them into groups (`group`), `writer`
writes those, `sweeping` removes what ended sessions left, `store` decides when and what happens if that fails;
`opening` and `reading` come before a broker serves. `schema` is what an operator sees.
"""

from __future__ import annotations

from broker.store.groups.principals import RuleTexts
from broker.store.sqlite.store import SqliteStore

__all__ = ["RuleTexts", "SqliteStore"]
