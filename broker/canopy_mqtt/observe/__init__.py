"""Observability: figures, `$SYS`, alarms, traces, explanations. The code here reads and never changes how messages are
routed.
"""
