"""The benchmark of brokers: the same loads on several brokers in one run (``python -m benchmarks.network``).

Owns: the rows of ``docs/benchmarks.md``, the load generator behind them, the peers they are run on.

Promises: every row states how many messages were lost or doubled; brokers take turns within each row, so that a noisy
machine is noisy for all of them; each run gets a fresh broker process, and every process that was started is ended.

Where the generator, and not the broker, was the limit, the row says so.

Modules, from the wire up: ``streams`` (what a subscriber got, against what was sent) · ``links`` (sockets and the epoll
loop) · ``loads`` (closed loops) · ``paced`` (open loops with latency) · ``frozen`` (clients that do not read) ·
``rows`` (the table's rows) · ``report`` · ``cli``. Brokers and their processes are ``canopy_load.brokers``'s.
"""
