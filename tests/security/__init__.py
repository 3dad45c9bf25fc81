"""Tests of canopy_mqtt.security, module by module."""
