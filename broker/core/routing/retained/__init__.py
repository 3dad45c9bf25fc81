"""Retained messages: the tree of them with its bounds (`store`), and who they count for (`shares`)."""
