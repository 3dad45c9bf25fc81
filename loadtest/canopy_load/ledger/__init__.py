"""One ledger of messages: the mark of each, its sender and time, its receivers, and the judgement.

While messages flow, compiled and with bounded memory: ``mark`` (run, stream and sequence number in the payload) ·
``deliveries`` (what a subscriber got: lost, twice, out of order, altered) · ``counters`` (figures of an interval).
Afterwards, from a log of everything that clients asked for and got: ``history`` (operations with their times and
outcomes) · ``checker`` (which promises of the specification were broken, and by which operations).

Promises: no event loop, socket or clock: the caller gives the times. `canopy load`, `canopy prove` and the tests that
kill brokers keep their books here.
"""
