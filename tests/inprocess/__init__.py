"""The client of the program that the broker runs in."""
