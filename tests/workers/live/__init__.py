"""Workers in real processes, behind the same listeners: `canopy serve --workers`, and machines with workers."""
