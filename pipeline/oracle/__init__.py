"""The oracle: an independent check of what the broker routed to whom, from the recorded events.

In the order of the work: `judge` (which runs, and which part of each, can be judged) · `spans` (who was subscribed
when, and joins by it) · `expect` (what should have been delivered, and what was) · `differ` (what differs, and why) ·
`job` (the run, and its summary) · `page`.
"""
