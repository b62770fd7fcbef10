"""The sockets that the product opens itself: one module a kind, and the files and folders that Unix sockets live in."""
