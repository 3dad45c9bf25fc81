"""`canopy ctl`."""
