"""Links to upstream brokers: local clients' subscriptions are made upstream too, folded into few topic filters.

`manager` holds all links of a broker, `link` is one of them on its event loop, `uplink` the protocol without one.
`aggregated` and `budget` decide which filters the upstream gets.
"""
