"""What would happen to a message now, and why: in the words of the router, and without any change to it."""
