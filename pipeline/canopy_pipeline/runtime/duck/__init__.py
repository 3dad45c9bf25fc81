"""The part of Spark's DataFrame interface that the jobs use, answered by DuckDB.

Owns: how a column expression and a frame become DuckDB's SQL. `columns` (expressions) · `functions` (those of
`pyspark.sql.functions`) · `duckdb_session` (the connection, readers, frames).

Promises: each function means here what it means to Spark in ANSI mode, as far as the jobs use it; a test holds both
engines against each other on whole records. What is not here raises AttributeError: nothing is guessed.

sqlframe (4.10 was measured) offers the same interface, but plans in Python: 53 ms of CPU for each operation on a frame
and 75 ms for each query. `canopy pipeline report` has 370 such operations, and takes 1.1 s altogether. It also keeps no
frame (`persist`), lacks `broadcast` and `octet_length`, and writes no partitions of one file.
"""
