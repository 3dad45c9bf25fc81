"""One record of several workers: what each sends, and what its supervisor makes of it."""
