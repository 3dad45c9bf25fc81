"""How a scenario is played: the processes of a run, their simulated clients, and when each message is due.

``job`` (what is asked for) · ``running`` (signals and the event loop) · ``conductor`` (all processes) ·
``process_channel``, ``process_messages`` (what they say to each other) · ``worker`` (one process) · ``client_pool``,
``client`` (its clients) · ``connecting``, ``connection`` (sockets and packets) · ``schedule``, ``sending``, ``pacer``
(when and what) · ``kernel_timer``, ``event_loop`` · ``drivers``, ``amqtt_driver`` (other clients than our own).
"""
