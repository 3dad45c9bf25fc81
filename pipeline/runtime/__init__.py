"""What a job runs on: the engine that computes (Spark or DuckDB), and the storages that it reaches.

`session` (a Spark) · `storage`, `hadoop` (files, wherever they are) · `engine` (which engine computes) · `duck` (DuckDB
in Spark's words) · `progress`. Imports of the pipeline only `errors`.
"""
