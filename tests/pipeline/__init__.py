"""The pipeline: what Spark makes of recorded events. One session serves all tests (`spark`)."""
