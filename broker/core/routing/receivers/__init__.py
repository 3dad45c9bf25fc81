"""Which sessions a message goes to: `fanout` forwards it, `plans`, `reach` and `sharing` say to whom."""
