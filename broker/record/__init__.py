"""The recorder: everything that goes through the broker, as Parquet segments with manifests.

`recorder` (what the broker starts and stops), `writer` (one segment after the other) · `sending`, `gathering`,
`numbering`, `pages` (the events of several workers as one record) · `unpack` (entries of a tap as columns; compiled),
`batches` · `schema` (the table) · `segment` (one file from its first row to its manifest) · `folder` (what a folder
holds, and what an earlier run left), `in_force` (which of its files count), `bundles` (of manifests) · `reading`, `cli`
(`canopy record`).

Stands on the core and pyarrow, which is the optional extra `canopy-mqtt[record]`. Nothing here is imported unless
something is recorded or read.
"""
