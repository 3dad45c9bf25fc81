"""The routing benchmark with no network.

Owns the tables that RabbitMQ's, EMQX's and zmq.rs's authors published for their routing, measured on the broker's own
objects in this process, each beside its author's figure. Every row checks what it routed, and fails where a destination
is missing or too many; a bar that was missed is shown as missed. What a message costs on a wire is
``benchmarks.network``'s. ``measure``, ``loads``, ``loops``, ``memory`` and ``stage`` are what the rows (``rabbitmq``,
``emqx``) stand on; ``benchmarks.growth`` has the same at many sizes.
"""
