"""A store that the nodes of a cluster share: a schema in PostgreSQL, and the functions by which nodes change it.

A session is a row: the node that claimed it last has it. A node notes changes and writes them as a numbered group, in
one call and one transaction; the database finds the sessions behind the filters of a message.
"""
