"""All jobs over one record in one session, and a page that links what they found."""
