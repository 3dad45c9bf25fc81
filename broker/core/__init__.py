"""The protocol and the routing: pure code that no event loop, socket or clock can be seen from.

Callers hand in bytes and the time (`now`, seconds of a monotonic clock) and get packets, queued frames and events
back. Read the modules in the order a message meets them: errors, reasons, packets, properties, decoder, topics,
trie, retained, message, session, router, fanout, encoder, outbox, channel. All of it may be compiled by mypyc; the
same code runs interpreted.
"""
