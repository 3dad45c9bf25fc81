"""Random and mutated packets against the broker. `python -m tests.fuzz` runs for as long as one likes; the test suite
runs the same targets for a fixed number of inputs with a fixed seed.

Each target is a module with `run(seed, stop) -> int`: it feeds inputs until `stop()` is true, returns how many there
were, and raises `Finding` when the broker does what no input may make it do.
"""
