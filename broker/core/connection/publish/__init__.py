"""A client's PUBLISH packets: routing and acknowledging them, topic aliases, and how fast they may come."""
