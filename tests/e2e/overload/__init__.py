"""Overload, end to end: what a broker does with clients that do not keep up, vanish, or come all at once.

Each file has one kind of trouble and states in its tests what must hold in it. Brokers that are looked into (ledgers,
queues, tasks) run in the test's own process, with clients behind a `FaultProxy`; where memory and descriptors count,
the broker is the `canopy` command in a process of its own, seen through `$SYS` and `/proc`.

Big numbers follow `scene.SCALE`, which the environment variable CANOPY_OVERLOAD_SCALE sets (1: what two cores do in
about a minute for all of this folder).
"""
