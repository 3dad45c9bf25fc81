"""One connection's protocol: CONNECT, PUBLISH, SUBSCRIBE, acknowledgements, rates, and its end.

May import everything else of the core except `persistence`.
"""
