"""Traces keep all packets of one client, topic filter or address, up to a time and a size.

`traces` starts and ends them and selects connections, `entries` holds what they keep, `masking` removes secrets from
packets, `fields` decodes them. `as_text`, `as_json` and `pcapng` are the formats in which they are read.
"""
