"""Users with passwords: the file, its hashes, the threads that hash, and the cache of verified passwords.

Imports the core, the settings and the interface of authenticators.
"""
