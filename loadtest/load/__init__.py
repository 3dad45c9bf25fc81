"""`canopy load`: simulated MQTT clients that put a described load on any broker, and say what came of it.

Owns: scenarios, the processes that play them, the judgement of what was delivered, and the reports.

Promises:
- Latency counts from the moment at which a message was *meant* to be sent, so that a broker that makes the generator
  wait is charged for the wait (no coordinated omission).
- Each message carries its run, its stream (one publisher's one topic), its number and its time. Lost, doubled,
  reordered and altered messages are counted for each (publisher, subscriber) pair. What cannot be judged (the edges of
  a subscription that came and went) is counted as such and not guessed.
- A result says what the generator itself cost, and does not call a figure the broker's where the generator was the
  limit.

Refuses: to send to anything but the targets it is given, and to reach into a broker other than by MQTT and `/proc`.

Rooms: ``scenario`` (what is to be played) · ``engine`` (who plays it) · ``checks`` (what became of each message) ·
``report`` (the result and its pages) · ``compare`` (brokers side by side) · ``capture`` (recorded traffic) · ``cli``.
"""
