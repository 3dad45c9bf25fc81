"""The sections about other brokers: links, their federation, and presence."""
