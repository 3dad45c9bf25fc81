"""Job `rollup`: traffic per topic and minute, and per topic and hour.

`latency` (how old a message was, and histograms that add up) · `transforms` (cells, and the tables made of them) ·
`tables` (where they lie, and how they are replaced) · `job` (one run) · `page`.
"""
