"""A thermometer, an alarm, a relay and a display that speak MQTT, each by another library."""
