"""The nodes of a cluster: brokers that exchange what their clients want, each as an MQTT 5 client of each other one.

`cluster` puts the parts together, `node_link` is the link to one other node, `node_links` all of them with those to
upstream brokers, `door` and `listener` let the other nodes in, `greeting` is what nodes say of themselves, and
`comparing` finds what they have otherwise.
Where they share their sessions, `telling` carries what they tell each other of these, and `pieces` writes it.
"""
