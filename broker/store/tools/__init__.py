"""What an operator does with a store: look into it, check it, take it out, bring it in, compact it.

Owns the work behind `canopy store`: `looking` opens a file to read beside a broker, `figures` and `verifying` say what
is in it, `exporting` and `importing` turn it into lines of JSON and back, `parquet` into Parquet and back, `mosquitto`
reads what mosquitto saved; `rows` knows what a row may hold. Promises: what only reads changes nothing, and sees one
moment; what writes has the lock.
"""
