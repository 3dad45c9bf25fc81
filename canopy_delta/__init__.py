"""A record as a table of Delta Lake, over the segments themselves. The recorder commits what it finishes, the jobs that
merge and remove segments commit that; this imports neither of them, but deltalake (the extra `canopy-mqtt[delta]`).
"""

from canopy_delta.table import Table, TableError, added, is_table

__all__ = ["Table", "TableError", "added", "is_table"]
