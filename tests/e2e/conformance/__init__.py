"""Black-box tests written from the specifications alone: raw packets in, raw packets out."""
