"""Shared by the tests of every room: how long a run may be (``runs``) and waiting for something (``waiting``)."""
