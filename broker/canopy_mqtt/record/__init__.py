"""The recorder: writes all traffic of the broker as Parquet segments with manifests.

`recorder` is what the broker starts and stops; `writer` writes one segment after the other; `unpack` turns entries of a
tap into columns (compiled); `schema` defines the table; `files` has segments and folders; `reader` reads a record
(`canopy record`).

Depends on the core and pyarrow, the optional extra `canopy-mqtt[record]`. It is imported only to record or read.
"""
