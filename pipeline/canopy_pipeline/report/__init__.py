"""Job `report` runs all jobs over one record in one session, and writes a page that links theirs."""
