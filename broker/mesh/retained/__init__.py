"""Retained messages on every node: the last writer wins (`replicas`), by stamps of a hybrid logical clock (`clock`)."""
