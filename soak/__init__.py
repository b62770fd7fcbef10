"""The product run for long, disturbed and killed; see docs/soak.md. Nothing of the product imports from here."""
