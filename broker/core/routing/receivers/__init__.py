"""Which sessions a message goes to: `fanout` forwards it, `plans` and `reach` say to whom."""
