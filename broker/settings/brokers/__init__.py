"""The sections about other brokers and other processes of this one: links, the mesh, workers."""
