"""Users with signed tokens (JWT): what a token must hold, and the keys that sign them.

Owns all of that; imports the core, the settings, the interface of authenticators, and how something is fetched.
"""
