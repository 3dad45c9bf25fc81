"""Hostile clients of every kind against a real broker daemon, beside clients that behave well (`make attack`).

`attacks` holds what is done, one function each; `field` is what an attack works with; `pairs` are the well-behaved
clients, in a process of their own; `runner` starts broker, pairs and attack and meters them; `bars` judges; `cli`
prints. Imports: `broker.core.codec` for the bytes, `loadtest.brokers` for the process, `benchmarks.network` for links.
Everything happens on 127.0.0.1, and is bounded in time.
"""
