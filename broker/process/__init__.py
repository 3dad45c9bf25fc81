"""A broker as a process of its own: event loop, signals, log, systemd."""
