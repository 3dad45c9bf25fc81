"""Explains what would happen to a message now, and why. It asks the router and changes nothing."""
