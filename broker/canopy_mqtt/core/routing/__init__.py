"""From a published message to its receivers: the router, the connected peers, links to other brokers.

`router` is the way in; `fanout` delivers a message, `recipients` finds who receives it, `retained` keeps messages. May
import `codec`, `topics`, `queues`, `session` and the interfaces of `persistence`.
"""
