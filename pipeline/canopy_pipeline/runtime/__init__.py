"""The ground of every job: the engine that computes (Spark or DuckDB), and the storages that it reaches.

`spark_session` · `storage` (files, wherever they are) · `engine` (Spark or DuckDB) · `duck` (DuckDB in
Spark's words) · `table_schema`. Imports of the pipeline only `errors`.
"""
