"""Messages that are on their way over several turns: to very many (`broadcasts`), or from one member of a shared
subscription to others (`unfinished`).
"""
