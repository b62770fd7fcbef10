"""Which guests exist, where they are reached, and the sources that say so."""
