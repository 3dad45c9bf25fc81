"""Tests of `canopy load`."""
