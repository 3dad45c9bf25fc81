"""What can be seen of a running broker. Everything here reads; nothing here changes how messages are routed."""
