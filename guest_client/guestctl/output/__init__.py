"""How answers are shown: tables, CSV, JSON, the terminal."""
