"""The recorder: everything that goes through the broker, as Parquet segments with manifests.

`recorder` (what the broker starts and stops), `writer` (one segment after the other) · `unpack` (entries of a tap as
columns; compiled), `schema` (the table) · `files` (segments, and what a folder holds) · `reading`, `cli`
(`canopy record`).

Stands on the core and pyarrow, which is the optional extra `canopy-mqtt[record]`. Nothing here is imported unless
something is recorded or read.
"""
