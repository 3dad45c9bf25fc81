"""The command `canopy load`: ``app`` (run, list, show), ``compare``, ``replay``, and what they share in ``common``; and
the command `canopy prove` (``prove``)."""
