"""Tests of the benchmark of the mesh."""
