"""What tests of every room share: how long a run may be (``runs``) and waiting for something (``waiting``)."""
