"""Several brokers as one: nodes that declare to each other what their clients want, and send on what is published.

Zenoh carries what they say (`zenoh`); what is said is decided here, by state machines that know neither it nor the
event loop. A broker without `[mesh]` imports nothing of this.
"""
