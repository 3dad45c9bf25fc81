"""What a durable store is told (`journal`), and how a broker is made from what it kept (`restore`).

`journal` is an interface that queues and sessions call; `restore` may import everything but `connection`.
"""
