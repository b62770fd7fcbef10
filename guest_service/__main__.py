"""The command `guest-service`.

`gpu-info` leaves here before anything else is imported: it is a process of its own for each sample, and its start is its cost.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command; returns its exit status."""
    if sys.argv[1:2] == ["gpu-info"]:
        from guest_service.collector import gpu_info  # noqa: PLC0415 (only this command needs it)

        os._exit(gpu_info.main(sys.argv[2:]))
    from guest_transport.process.early_signals import end_on_signals  # noqa: PLC0415 (gpu-info must not pay for it)
    from guest_transport.process.standard_streams import run_command  # noqa: PLC0415 (as above)

    if sys.argv[1:2] == ["serve"]:
        end_on_signals()
    return run_command("guest-service", _run)


def _run() -> int:
    from guest_transport.process.grpc_environment import prepare_grpc  # noqa: PLC0415 (as above)

    prepare_grpc()
    from guest_service.cli import main as run  # noqa: PLC0415 (after the environment is set)

    return run(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
