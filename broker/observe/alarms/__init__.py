"""Alarms: what an operator has to know without having asked. `alarms` looks and tells; the others are its parts."""
