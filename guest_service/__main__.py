"""The command `guest-service`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command; returns its exit status."""
    from guest_service.cli import main as open_door  # noqa: PLC0415 -- gpu-info, answered before this, must not pay for click

    return open_door(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
