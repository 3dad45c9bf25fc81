"""The most expensive topics and clients in constant memory: a sample of publishes, and a pass over the subscribers."""
