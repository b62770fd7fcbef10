"""The VMM proxy: runs on the host and answers for every guest by its VM id."""
