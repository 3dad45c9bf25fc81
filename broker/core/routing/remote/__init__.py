"""What routing knows of other brokers: nodes of a mesh (`nodes`), what they add to messages (`node_tags`,
`publish_numbers`), and the way of messages over links (`loop_detection`)."""
