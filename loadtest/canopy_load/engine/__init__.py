"""Playing a scenario: the processes of a run, their simulated clients, and the time of each message.

``job`` (the order for a run) · ``running`` (signals and the event loop) · ``conductor`` (all processes) ·
``process_channel``, ``process_messages`` (between them) · ``worker`` (one process) · ``clients`` (its simulated
clients) · ``schedule`` (the time of each message) · ``kernel_timer``, ``event_loop``.
"""
