"""One connection's protocol: CONNECT, PUBLISH, SUBSCRIBE, acknowledgements, rates, and its end.

`protocol` is the way in; `connect` accepts a client, `publish` takes its messages, `subscribing` its filters. May
import everything else of the core except `persistence`.
"""
