"""Hostile clients of every kind against a real broker daemon, beside clients that behave well (`make attack`).

`bench` starts broker, pairs and attack, meters and judges them. `field` is what an attack works with, and the list of
them; `pairs` are the well-behaved clients; `place` is what an attacked broker listens on and who comes in to it. The
attacks stand in `strangers` (before MQTT), `handshakes` (TLS), `guessing` (authentication), `publishing`,
`subscribing`, and `lasting` (sessions, wills, a store). Everything happens on 127.0.0.1, and is bounded in time.
"""
