"""Job `upload` copies finished segments to an object store, and may remove them here once they are there."""
