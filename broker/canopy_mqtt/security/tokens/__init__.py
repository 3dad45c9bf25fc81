"""Users with signed tokens (JWT): the checks of a token, and the keys that verify it.

Imports the core, the settings, the interface of authenticators, and their HTTP client.
"""
