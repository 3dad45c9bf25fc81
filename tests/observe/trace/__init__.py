"""Traces of packets."""
