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

Modules, from the inside out: ``mark`` (what each message carries) · ``judge`` (what a subscriber got) · ``tally``
(counters of an interval) · ``schedule`` and ``sending`` (when a message is due, and bursts of PUBLISH) · ``wire`` (one
connection) · ``pace`` and ``alarm`` (who is due next) · ``scenario`` (the schema) · ``library``, ``overrides``,
``complaints`` (finding and changing scenarios) · ``names`` and ``payloads`` (patterns) · ``plan`` (who exists) ·
``greeting`` and ``client`` (what one does) · ``crew`` and ``worker`` (a process full of them) · ``line``, ``messages``
and ``conductor`` (all processes) · ``expect`` (what should have come) · ``ledger`` and ``watch`` (the broker from
outside) · ``assemble``, ``histogram`` and ``verdict`` to ``result`` (what came of it) · ``report``, ``words`` and
``live`` · ``brokers``, ``compare``, ``comparison``, ``limit`` (brokers side by side) · ``commands`` and ``cli``. Beside
them: ``records``, ``recordtables`` (a row of every message), ``capture``, ``capturefile``, ``recording``, ``spool`` and
``replay`` (recorded traffic as load), ``drivers`` and ``amqttdriver`` (whose client speaks).
"""
