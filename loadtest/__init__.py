"""Simulated publishers and subscribers, the loads they put on a broker, and what came of it.

Owns: everything that drives a broker from outside: load generators, scenarios, benchmarks, their reports.

Promises: speaks to any MQTT 3.1.1 or 5.0 broker over a socket, and says of every figure what was lost, what was
doubled, and whether the generator or the broker was the limit. ``routing`` alone measures without one: the routing core
in this process.

Refuses: to reach into a running broker. Of the package ``broker`` it may use ``broker.core`` and nothing else.
"""
