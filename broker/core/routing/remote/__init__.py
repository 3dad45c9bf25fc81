"""The way of messages over links between brokers (`loop_detection`)."""
