"""A record on disk: segments and their manifests, drafts, the folder, and the list of current files."""
