"""The client's side of MQTT: the session of a link, both directions of messages, and the connection.

May import `filters`.
"""
