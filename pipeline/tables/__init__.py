"""From payloads to tables: a mapping file says which topics become which tables, and how payloads become columns."""
