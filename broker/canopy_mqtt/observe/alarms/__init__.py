"""Alarms report faults that an operator has to know of. `alarms` raises and clears them; the other modules are its
parts.
"""
