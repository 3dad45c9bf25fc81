"""Job `retention` removes old segments and lists them in the record."""
