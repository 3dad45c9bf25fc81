"""The bus between nodes, on Zenoh: everything here may import the package `zenoh`, and nothing outside does."""
