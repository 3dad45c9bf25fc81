"""Tests of the sample of what comes in, and of the walk over the subscribers."""
