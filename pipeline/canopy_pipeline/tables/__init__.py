"""From payloads to tables, by a mapping file that gives each table its topics and columns."""
