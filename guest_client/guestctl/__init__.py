"""The command `guestctl`: shows guests and their GPUs on a terminal."""
