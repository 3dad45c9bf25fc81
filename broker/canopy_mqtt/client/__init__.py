"""One MQTT client, for everything of this project that connects to a broker and is not built for one purpose alone.

`machine` has the protocol without a socket, `aio` and `blocking` connect it to one, `address` says where a broker
listens and `failures` what may go wrong.
"""
