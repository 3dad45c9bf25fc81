"""One client's connection: CONNECT, PUBLISH, SUBSCRIBE, acknowledgements, rates, and the end.

`ServerProtocol` owns the state of a connection and is the way in; the other files are functions over it, one file for
each group of packets. This package may import everything else of the core except `persistence.restore`.
"""
