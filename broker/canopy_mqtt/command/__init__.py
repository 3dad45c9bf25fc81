"""The `canopy` command and all its commands."""
