"""The routes, in a module for each kind of thing; each has `ROUTES`."""
