"""Projects of other people, as they would be: each has its own pyproject.toml and its own tests."""
