"""Hostile bytes at every door of the product: `make fuzz`, and a short form of it in the ordinary suite."""
