"""The simulated clients of one process.

``client_pool`` (all of them; ``pool``: what they share) · ``client`` (the life of one, with its
``timers`` and ``requests``) · ``connecting``, ``connection`` (sockets and packets) · ``sending``, ``send_scheduler``
(messages, and their order in time).
"""
