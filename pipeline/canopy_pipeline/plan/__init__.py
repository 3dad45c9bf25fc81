"""The plan: a few topic filters that a broker subscribes to upstream, in place of all that its clients hold.

In the order of the work: `plan_transforms` (filters and traffic, in Spark) · `filter_folding` (on the driver) ·
`plan_job` (the run) · `plan_outcome`, `plan_page`.
"""
