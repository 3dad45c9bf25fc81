"""Tests of the routing benchmark: that its rows route what they say, and that its report hides nothing."""
