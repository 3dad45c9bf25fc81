"""Payloads of one format each, as the values of a table's columns. Plain Python; no Spark, no files."""
