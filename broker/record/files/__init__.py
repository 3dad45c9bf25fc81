"""A record on disk: segments and their manifests, drafts, the folder, and which of its files count."""
