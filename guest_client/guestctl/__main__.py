"""The command `guestctl`."""

from __future__ import annotations

import sys

from guest_client.guestctl.cli import run
from guest_transport.process.grpc_environment import prepare_grpc
from guest_transport.process.standard_streams import run_command


def main() -> int:
    """Run the command; returns its exit status."""
    prepare_grpc()
    return run_command("guestctl", lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    raise SystemExit(main())
