"""Job `tree`: the traffic of each branch of the topic tree, hot topics, and topic explosions.

`tree_transforms` · `tree_job` · `tree_page`.
"""
