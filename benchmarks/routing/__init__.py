"""The routing benchmark with no network (``python -m benchmarks.routing``).

Owns: the tables that RabbitMQ's, EMQX's and zmq.rs's authors published for their routing, measured on the broker's own
objects in this process, each beside its author's figure.

Promises: what is measured is what the broker calls for each packet: the trie, its entries, the match cache, the router
and the outboxes. Every row checks what it routed, and fails where a destination is missing or too many. A bar that was
missed is shown as missed.

Refuses: sockets, event loops and threads. What a message costs on a wire is ``benchmarks.network``'s.

Modules, from the ground up: ``measure`` (clocks, the garbage collector) · ``loads`` (filters and topics) · ``loops``
(what is timed) · ``memory`` (a fresh process for each figure) · ``stage`` (a router with peers) · ``row`` (what a row
is) · ``rabbitmq``, ``emqx``, ``zmq`` (the rows) · ``rows`` (all of them) · ``growth`` (the same, at many sizes) ·
``report`` · ``cli`` · ``plot``.
"""
