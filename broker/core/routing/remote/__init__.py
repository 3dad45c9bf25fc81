"""What routing knows of other brokers: the nodes of a mesh, numbers of their QoS 2 publishes, loops over links."""
