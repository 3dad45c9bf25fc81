"""`canopy load`: simulated MQTT clients put a described load on any broker and report the result.

Latency counts from the moment at which a message was *meant* to be sent (no coordinated omission). Lost, doubled,
reordered and altered messages are counted for each (publisher, subscriber) pair; what cannot be judged is counted as
such. A result says what the generator itself cost, and whose limit its figures are. Nothing is sent but to the targets
that are given, and a broker is reached by MQTT and `/proc` alone.
Rooms: ``scenario`` (what is to be played) · ``engine`` (who plays it) · ``checks`` (what became of each message) ·
``report`` (the result and its pages) · ``compare`` (brokers side by side) · ``prove`` (what a broker loses: the command
`canopy prove`) · ``capture`` (recorded traffic) · ``cli`` · ``brokers`` (the brokers that it starts).
"""
