"""MQTT over WebSocket (RFC 6455; MQTT 5.0, section 6): the upgrade, frames, and a transport for a `Connection`."""
