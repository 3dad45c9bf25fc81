"""What is to be played: the schema of a scenario, the built-in ones, and who exists in a run.

``schema`` (groups, stages, what clients do) · ``library``, ``overrides``, ``complaints`` (finding, changing, refusing
scenarios) · ``toml_text`` · ``patterns``, ``payloads`` (names and contents from patterns) · ``plan`` (clients, streams
and subscriptions, numbered).
"""
