"""Job `rollup`: traffic per topic and minute, and per topic and hour.

`latency` (the age of a message, and histograms that add up) · `rollup_transforms` (cells, and tables made of them) ·
`rollup_tables` (the folders, and how an hour is replaced) · `rollup_job` (one run) · `rollup_page`.
"""
