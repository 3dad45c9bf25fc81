"""What is published goes to other nodes, and comes from them: MQTT 5.0 over a pipe to each."""
