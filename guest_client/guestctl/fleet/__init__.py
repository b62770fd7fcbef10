"""The commands about several guests: list, gpu of many, watch."""
