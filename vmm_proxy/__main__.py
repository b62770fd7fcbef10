"""The command `vmm-proxy`."""

from __future__ import annotations

import os


def main() -> None:
    """Run the command; ends the process with its exit status."""
    # C-core logs to stderr in a format of its own, and what a hostile guest sends is in its lines. Set GRPC_VERBOSITY to see
    # them.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from vmm_proxy.cli import main as command  # noqa: PLC0415 - after the environment is set

    command()


if __name__ == "__main__":
    main()
