"""Assembles a broker, and runs it as a process: `app` has `Broker`, `daemon` its loop and signals.

Owns the connections between rooms: opening the store (`storing`), access control (`securing`), the recorder
(`recording`), changes of settings (`reloading`) and files (`watching`), and draining (`draining`).
"""
