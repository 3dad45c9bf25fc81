"""`canopy ctl`: a running broker, looked at and steered over HTTP. Each command is a module beside `cli`."""
