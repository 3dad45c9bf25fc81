"""How a scenario is played: the processes of a run, their simulated clients, and when each message is due.

``job`` (what is asked for) · ``running`` (signals and the event loop) · ``conductor`` (all processes) ·
``process_channel``, ``process_messages`` (what they say to each other) · ``worker`` (one process) · ``clients`` (its
simulated clients) · ``schedule`` (when each message is due) · ``kernel_timer``, ``event_loop``.
"""
