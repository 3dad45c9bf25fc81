"""What all stores that write groups of changes have in common, to a file or to a database.

Owns the conversion of the core's changes into groups (`journal`, `group`, `notes`), when a group ends and what happens
if it cannot be written (`committing`, told by `shell`), what is read back while the broker runs (`fetching`), and the
meaning of rows (`records`, `principals`). A `Medium` writes and reads.
"""
