"""Workers: several processes that serve the clients of one broker.

The process that was started, the supervisor, listens (`entrance`), reads the client identifier in each CONNECT
(`first_packet`), and passes the connection to the worker whose clients have it (`placing`, `lines`). Each worker is a
whole broker, with a store of its own, and a node that is linked with each other worker (`canopy_mqtt.cluster`). `plan`
makes the settings of each, `supervisor` starts and ends them, `process` is a worker as the supervisor sees it (it is
forked by `canopy_mqtt.assembly.nursery`), `worker` is what runs there, and `wire` is what the two say to each other.
"""
