"""TOML files into frozen settings, refused in one line that names file, key and what is allowed."""
