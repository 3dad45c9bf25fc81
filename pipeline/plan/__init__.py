"""The plan: which few topic filters a broker should subscribe to upstream, in place of all that its clients hold.

In the order of the work: `transforms` (filters and traffic, in Spark) · `cover` (folding filters, on the driver) ·
`job` (the run) · `page`.
"""
