"""The part of Spark's DataFrame interface that the jobs use, answered by DuckDB.

Owns: how a column expression and a frame become DuckDB's SQL. `columns` (expressions) · `functions` (those of
`pyspark.sql.functions`) · `duckdb_session` (the connection, readers, frames).

Promises: each function means here what it means to Spark in ANSI mode, as far as the jobs use it; a test holds both
engines against each other on whole records. What is not here raises AttributeError: nothing is guessed.
"""
