"""From a published message to its receivers: the router, the connected peers, loops, deadlines.

`router` is the way in; `receivers` finds who gets a message, `in_turns` delivers what takes several turns, `retained`
keeps messages. May import `codec`, `topics`, `queues` and `session`.
"""
