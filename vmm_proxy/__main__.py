"""The command `vmm-proxy`."""

from __future__ import annotations

import sys

from guest_transport.process.early_signals import end_on_signals
from guest_transport.process.grpc_environment import prepare_grpc
from guest_transport.process.standard_streams import run_command


def main() -> int:
    """Run the command; returns its exit status."""
    if sys.argv[1:2] == ["serve"]:
        end_on_signals()
    return run_command("vmm-proxy", _run)


def _run() -> int:
    prepare_grpc()
    from vmm_proxy.cli import run  # noqa: PLC0415 - after the environment is set

    return run(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
