"""Benchmarks: one command each, ratios in one run."""
