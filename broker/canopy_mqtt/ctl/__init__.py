"""`canopy ctl`: inspects and controls a running broker over HTTP. Each module has one or a few commands."""
