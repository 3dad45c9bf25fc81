"""Retained messages: their tree with its limits (`store`), and the share of each client (`shares`)."""
