"""Who comes in, and who may do what: authenticators and the rules about topics, behind the core's hooks.

Imports `broker.core` and `broker.settings`, never the network; `broker.app` puts it together with the server.
"""
