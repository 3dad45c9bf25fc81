"""One ledger of messages: the mark of each, its sender and time, its receivers, and the judgement.

While messages flow, compiled and with bounded memory: ``mark`` (run, stream and number in the payload) · ``deliveries``
(lost, twice, out of order, altered) · ``counters`` (figures of an interval). Afterwards, from a log of all that clients
asked for and got: ``history`` · ``sessions`` (what follows from it) · ``checker`` (which promises were broken, by which
operations) · ``packet_log`` · ``told`` (lines for people) · ``streams`` (the marks of such a run).

Promises: no event loop, socket or clock: the caller gives the times. `canopy load`, `canopy prove` and the tests that
kill brokers keep their books here.
"""
