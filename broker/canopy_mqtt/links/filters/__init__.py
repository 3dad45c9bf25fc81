"""Which topic filters a link subscribes to upstream: counted, folded, mapped, limited in number. Pure."""
