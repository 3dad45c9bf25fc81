"""One connection's side of the protocol: CONNECT, PUBLISH, SUBSCRIBE, acknowledgements, rates, and its end.

May import everything else of the core but `persistence`.
"""
