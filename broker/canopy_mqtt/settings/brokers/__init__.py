"""The sections about other brokers: links, federation and presence."""
