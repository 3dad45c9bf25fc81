"""The links themselves: what the settings come to, reconnecting, reload, status.

May import `filters` and `protocol`.
"""
