"""What outlives a broker."""
