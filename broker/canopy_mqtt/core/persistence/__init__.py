"""The core's side of a store: changes for it (`journal`), what it has committed (`commits`), and building a router from
it (`restore`).

`journal` is an interface that queues and sessions call, `commits` the list of packets that wait for a commit. `restore`
may import every other package, and of `protocol` only `identity`.
"""
