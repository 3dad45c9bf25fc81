"""One ledger of messages: what each carries, who sent it when, who got it, and what is to be said of that.

While messages flow, compiled and with bounded memory: ``mark`` (run, stream and sequence number in the payload) ·
``deliveries`` (what a subscriber got: lost, twice, out of order, altered) · ``counters`` (figures of an interval).
Afterwards, from a log of everything that clients asked for and got: ``history`` (operations with their times and
outcomes) · ``checker`` (which promises of the specification were broken, and by which operations).

Promises: no event loop, socket or clock: times come from whoever calls. `canopy load` and the tests that kill brokers
keep their books here.
"""
