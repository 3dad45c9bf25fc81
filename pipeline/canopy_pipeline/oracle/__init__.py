"""The oracle: an independent check of the broker's routing, from the recorded events.

In the order of the work: `judge` (which part of each run can be judged) · `subscription_spans` (the subscribers at each
time, and joins by it) · `expect` (expected and recorded deliveries) · `agreement` (blocks that need no comparison) ·
`differ` (the differences, and their reasons) · `oracle_job` (the run, and its summary) · `oracle_outcome`,
`oracle_page`.
"""
