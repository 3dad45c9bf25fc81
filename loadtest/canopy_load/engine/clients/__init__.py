"""The simulated clients of one process.

``client_pool`` (all of them; ``pool``: the part that one client uses) · ``client`` (the life of one, with its
``timers`` and ``requests``) · ``connecting``, ``connection`` (sockets and packets) · ``sending``, ``send_scheduler``
(messages, and their order in time).
"""
