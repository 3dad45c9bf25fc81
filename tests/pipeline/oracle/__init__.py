"""The oracle, held against a broker in plain Python that says what it does wrong."""
