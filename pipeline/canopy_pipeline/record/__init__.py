"""A record: the recorder's folder with its segments, their manifests, and the table of events.

`events_schema` · `manifests` · `chosen_files`, `account`, `coverage` (which files count, and what is missing) ·
`segments` (the events as one DataFrame) · `unread` (the next part for a stream) · `record_folder`, `locks` (for the
jobs that change a record). Imports of the pipeline only `errors` and `runtime`.
"""
