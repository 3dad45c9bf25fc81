"""The plan, held against brute force on small instances."""
