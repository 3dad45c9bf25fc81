"""Which subscriptions a topic name matches: tries of topic filters, the match cache, the tree of retained topics.

Knows filters, topics and subscribers, but no message, queue or connection. May import `codec`.
"""
