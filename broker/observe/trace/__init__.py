"""Traces: everything of one client, topic filter or address, for a bounded time and size.

`traces` begins and ends them and finds the connections, `kept` has what they keep, `masking` takes out secrets before
anything is kept, `fields` takes packets apart. `as_text`, `as_json` and `pcapng` are the forms in which they are read.
"""
