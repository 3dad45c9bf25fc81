"""Job `tree`: what each branch of the topic tree carries, which topics are hot, and where topics explode.

`transforms` · `job` · `page`.
"""
