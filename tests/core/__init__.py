"""Tests of `canopy_mqtt.core`: no sockets, no event loop, no clock. They run compiled and interpreted."""
