"""The command `guestctl`."""

from __future__ import annotations


def main() -> int:
    """Run the command; returns its exit status."""
    raise NotImplementedError


if __name__ == "__main__":
    raise SystemExit(main())
