"""Tests of the state that outlives a broker."""
