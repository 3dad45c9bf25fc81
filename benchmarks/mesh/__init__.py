"""What it costs that several brokers are one: messages that cross nodes, interest, joining, workers, growth."""
