"""The client of the program that the broker runs in: publish and subscribe without a socket and without a codec.

Imports `broker.core`, and of `broker.net` what a connection is to whoever wakes it; `broker.app` puts it together with
the server. See docs/embedding.md.
"""
