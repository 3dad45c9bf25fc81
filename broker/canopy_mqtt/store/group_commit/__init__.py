"""Shared by all stores that commit changes in groups, to a file or to a database.

Owns the conversion of the core's changes into groups (`journal`, `batch`, `notes`), when a group ends and what happens
if it cannot be written (`committer`), what is read back while the broker runs (`fetching`), and the meaning of rows
(`records`, `principals`). A `Medium` writes and reads.
"""
