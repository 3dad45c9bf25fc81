"""Which topic filters an upstream broker is asked for: counted, folded, mapped, kept to a budget. Pure."""
