"""`canopy pipeline loadtest`: the account of a load run, from the rows of its messages.

Owns: the same counts and latencies as the load tester's own report, found again by joins and windows over what
`canopy load run --records` wrote, and the comparison of the two.

Promises: nothing is taken over from the report that it is held against. Each count follows from rows: what was sent,
what came in which order, which subscriber should have heard which stream, and where connections and sessions ended.

Modules: ``tables`` (what is read) · ``transforms`` (copies, gaps, order: one account for each pair) · ``latency``
(distributions and seconds) · ``agreement`` (beside the load tester's report) · ``job`` · ``page`` · ``command``.
"""
