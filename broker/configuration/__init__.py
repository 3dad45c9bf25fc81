"""Reading settings: files, environment, messages for people, and checks of what settings would do."""
