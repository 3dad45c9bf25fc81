"""Deliveries that take several turns: to very many receivers (`broadcasts`), or from one member of a shared
subscription to others (`unfinished`).
"""
