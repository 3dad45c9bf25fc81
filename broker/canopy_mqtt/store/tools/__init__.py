"""The operator's tools for a store: inspect, verify, salvage, export, import.

Owns the work of `canopy store`: `read_only` opens a file beside a broker, `info` and `verifying` report its content,
`exporting` and `importing` convert it to lines of JSON and back, `mosquitto_db` reads mosquitto's file; `row_rules` has
the rules for a row. Promises: reading changes nothing, and sees one moment; writing holds the lock.
"""
