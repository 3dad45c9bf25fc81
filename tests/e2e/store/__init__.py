"""A daemon with a store, whose processes are killed and whose disks fail."""
