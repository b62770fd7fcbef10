"""The command `guestctl`."""

from __future__ import annotations

import os
import sys

from guest_client.guestctl.cli import run
from guest_transport.standard_streams import run_door


def main() -> int:
    """Run the command; returns its exit status."""
    # Else gRPC's C core, loaded later, writes lines of its own about a TLS handshake that fails.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return run_door("guestctl", lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    raise SystemExit(main())
