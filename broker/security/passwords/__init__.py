"""Users with passwords: the file, its hashes, the threads that hash, what is remembered of passwords that were right.

Owns all of that; imports the core, the settings and the interface of authenticators.
"""
