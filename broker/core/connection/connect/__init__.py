"""CONNECT and AUTH: from the first bytes of a connection until its client is accepted, and who that is."""
