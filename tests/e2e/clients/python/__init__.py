"""Client libraries of Python, one face for all of them (`drivers`), and the contract that each is held against."""
