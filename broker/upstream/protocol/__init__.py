"""The client's side of MQTT: the session of a link, what goes up and comes down, and the connection.

May import `filters`.
"""
