"""The way of one call to a guest, from the pool down to the checked reply. docs/concepts.md lists the modules in reading order."""
