"""A record as a Delta Lake table over its segments. The recorder and the jobs that merge or remove segments commit to
it.

It imports neither of them, but deltalake (the extra `canopy-mqtt[delta]`).
"""

from canopy_mqtt.delta.table import Table, TableError, added, is_table

__all__ = ["Table", "TableError", "added", "is_table"]
