"""The `canopy` command, and what its commands have in common."""
