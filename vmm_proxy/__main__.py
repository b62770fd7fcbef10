"""The command `vmm-proxy`."""

from __future__ import annotations

import os
import sys

from guest_transport.early_signals import end_on_signals
from guest_transport.standard_streams import run_door


def main() -> int:
    """Run the command; returns its exit status."""
    if sys.argv[1:2] == ["serve"]:
        end_on_signals()
    return run_door("vmm-proxy", _run)


def _run() -> int:
    # C-core logs to stderr in a format of its own, and what a hostile guest sends is in its lines. Set GRPC_VERBOSITY to see
    # them.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from vmm_proxy.cli import run  # noqa: PLC0415 - after the environment is set

    return run(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
