"""The benchmarks' own processes: what they start must end, and what does not start must be said."""
