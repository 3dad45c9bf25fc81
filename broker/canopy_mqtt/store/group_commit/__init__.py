"""Shared by all stores that commit changes in groups, to a file or to a database.

Owns the conversion of the core's changes into groups (`journal`, `batch`, `notes`), when a group ends and what happens
if it cannot be written (`committer`), what is read back while the broker runs (`fetching`), the meaning of rows
(`records`, `principals`), and the store that is made of these (`store`). A `Medium` writes and reads.
"""
