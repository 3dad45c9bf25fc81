"""Tests of the one MQTT client."""
