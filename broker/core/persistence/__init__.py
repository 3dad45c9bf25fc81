"""What a durable store is told (`journal`), how far that is committed (`commits`), and how a broker is made from what a
store kept (`restore`), or a session goes from one broker to another (`moving`).

`journal` is an interface that queues and sessions call, `commits` the line of what waits until it may be sent.
`restore` may import everything but `connection`.
"""
