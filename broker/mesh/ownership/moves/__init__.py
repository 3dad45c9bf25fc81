"""Sessions on their way between nodes: those that go (`giving`, by `turns`; `leaving`: all of a node that stops) and
those that come (`taking`, `merging`), as bytes (`records`); `silence` ends a move that stands still."""
