"""The tests. They mirror the rooms of the project one to one; `tests/e2e` holds real clients and whole processes."""
