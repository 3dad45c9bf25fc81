"""Recorded traffic: `canopy load capture` writes it, `canopy load replay` plays it.

``subscriber`` (hears a broker) · ``file`` (Parquet) · ``spool`` (a file laid out for playing) · ``recording`` (which
publisher plays which topics) · ``loading`` (reads it when a run begins) · ``replay`` (a file becomes a job).
"""
