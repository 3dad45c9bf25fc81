"""What is the same wherever a store writes its groups of changes to: a file, or a database.

Owns the way from what the core tells to a group (`journal`, `group`, `notes`), when a group ends and what happens when
it cannot be written (`committing`, told by `shell`), what is read back while the broker runs (`fetching`), and what
rows say (`records`, `principals`). Whoever writes and reads is a `Medium`.
"""
