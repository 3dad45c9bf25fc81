"""Which connection continues when: the writers to wake, turns in a round of the event loop, one timer for all."""
