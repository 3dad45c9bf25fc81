"""The core's side of a store: changes for it (`journal`), what it has committed (`commits`), building a router from it
(`restore`), and moving a session to another broker (`moving`).

`journal` is an interface that queues and sessions call, `commits` the list of packets that wait for a commit. `restore`
may import everything except `connection`.
"""
