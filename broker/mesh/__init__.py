"""Several brokers as one: nodes that tell each other what their clients want, and hand on what is published.

Zenoh carries what they say (`zenoh`); what is said is decided here, by state machines that know neither it nor the
event loop. A broker without `[mesh]` imports nothing of this.
"""
