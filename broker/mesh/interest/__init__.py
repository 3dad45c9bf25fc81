"""What the clients of each node want: declared to the other nodes, and heard from them. Pure: no event loop, no clock.

`room` has both sides and is what the broker speaks to. `declaring` is this node's side, with the table of what the
others are to have (`declared`) and those who wait for them (`confirmations`); `receiving` is what another node has
declared, which goes to that node's session here. `wire` has the messages.
"""
