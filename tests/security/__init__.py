"""Tests of broker.security, module by module."""
