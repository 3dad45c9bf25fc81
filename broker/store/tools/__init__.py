"""What an operator does with a store: inspect, verify, salvage, export, import.

Owns the work of `canopy store`: `looking` opens a file for reading beside a broker, `figures` and `verifying` report
its content, `exporting` and `importing` convert it to lines of JSON and back, `mosquitto` reads mosquitto's file;
`rows` has the rules for a row. Promises: reading changes nothing, and sees one moment; writing holds the lock.
"""
