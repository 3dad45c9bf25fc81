"""A record, which is what the recorder leaves in its folder: its segments, their manifests, and the table of events.

`schema` · `manifests` · `coverage` (what is missing) · `segments` (the events as one DataFrame) · `unread` (what a
stream reads next) · `depot`, `locks` (for the jobs that change a record). Imports of the pipeline only `errors` and
`runtime`.
"""
