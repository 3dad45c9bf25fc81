"""SCRAM-SHA-256 (RFC 5802, RFC 7677) as an authentication method of MQTT 5.0: messages, file of keys, exchange.

Imports the core, the settings and the interface of authenticators.
"""
