"""The command `guest-service doctor`. Exit status: 0 nothing is wrong, 1 something is wrong, 2 misuse. Its help imports no check."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Check what can be wrong in this guest; say what to do.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Configuration (TOML); default /etc/guest-service/config.toml if it is there, else the defaults.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Form of the report (default text).")
def doctor(config: Path | None, output: str) -> int:
    """Check what can be wrong in this guest, and say what to do.

    One line each. Changes nothing, and may run beside the agent; run it as the user that the agent runs as.

    Exit status: 0 nothing is wrong, 1 something is, 2 misuse.
    """
    from guest_service.doctor.checks import CHECKS  # noqa: PLC0415 -- --help must not pay for gRPC
    from guest_service.doctor.machine import find_guest  # noqa: PLC0415 -- the same
    from guest_transport.doctor.command import examine  # noqa: PLC0415 -- the same

    return examine(CHECKS, find_guest(config), output=output, refused=lambda guest: bool(guest.refused))
