"""The links: their settings, reconnecting, reload, status.

May import `filters` and `protocol`.
"""
