"""Recorded traffic: `canopy load capture` writes it, `canopy load replay` plays it.

``subscriber`` (the client that captures) · ``capture_file`` (Parquet) · ``recording`` (the topics of each publisher) ·
``replay_spool`` (a capture laid out for playing, when a run begins) · ``replay`` (a file becomes a job).
"""
