"""The benchmark of brokers: the same loads on several brokers in one run (``python -m benchmarks network``).

Promises: every row states how many messages were lost or doubled, and whether the generator, and not the broker, was
the limit; each run gets a fresh broker process, and every process that was started is ended.

Modules, from the wire up: ``streams`` (what a subscriber got, against what was sent) · ``links`` (sockets and the epoll
loop) · ``loads`` (closed loops) · ``paced`` (open loops with latency) · ``frozen`` (clients that do not read) ·
``measure`` (one run) · ``rows``. The runner is ``benchmarks.runner``; brokers are ``canopy_load.brokers``'s.
"""
