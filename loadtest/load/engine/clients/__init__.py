"""The simulated clients of one process.

``client_pool`` (all of them; ``pool``: what one has from it) · ``client`` (the life of one, with its ``timers`` and
``requests``) · ``connecting``, ``connection`` (sockets and packets) · ``sending``, ``pacer`` (what is sent when).
"""
