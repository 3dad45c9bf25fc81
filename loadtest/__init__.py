"""Simulated publishers and subscribers, the loads they put on a broker, and what came of it.

Owns: ``load`` (`canopy load`: scenarios, simulated clients, reports) and ``brokers`` (the brokers it starts).

Promises: speaks to any MQTT 3.1.1 or 5.0 broker over a socket, and says of every figure what was lost, what was
doubled, and whether the generator or the broker was the limit.
"""
