"""What is told of the broker."""
