"""Tests of `broker.core`: no sockets, no event loop, no clock. They run compiled and interpreted."""
