"""Scenarios: their schema, the built-in ones, and the clients and streams of a run.

``scenario_schema`` (groups, stages, the work of clients) · ``library``, ``overrides``, ``complaints`` (finding,
changing and refusing scenarios) · ``toml_text`` · ``patterns``, ``payloads`` (names and contents from patterns) ·
``plan`` (clients, streams and subscriptions, numbered).
"""
