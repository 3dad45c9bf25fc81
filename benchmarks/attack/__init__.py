"""Hostile clients of every kind against a real broker daemon, beside clients that behave well (`make attack`).

`bench` starts broker, pairs and attack, meters and judges them. `field` is what an attack works with, and the list of
them; `pairs` are the well-behaved clients; `attacked_broker` has the listeners and the users of the broker under
attack. The attacks stand in `other_protocols` (before MQTT), `handshakes` (TLS), `guessing` (authentication),
`publishing`, `subscribing`, and `stored_state` (sessions, wills, a store). Everything happens on 127.0.0.1, and is
bounded in time.
"""
