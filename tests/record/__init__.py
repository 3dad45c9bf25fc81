"""Tests of the recorder: segments, manifests, what a folder holds, and `canopy record`."""
