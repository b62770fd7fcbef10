"""The commands of `guest-service`; each imports what it needs when it runs.

`--help` and `--version` must work in a broken guest, so nothing heavy is imported before a command is chosen; gpu-info is answered before
this module is even imported. It judges only what the command line says. A refusal is one line on stderr: exit 2 for misuse and
configuration, 1 for what the machine refuses. Rejected: argparse (no lazy subcommands that list themselves).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click

from guest_contract.card_fields import GROUPS
from guest_transport.errors import StartError
from guest_transport.process.logs import escape

DISTRIBUTION = "guestscope"
# What a shell calls the end by Ctrl-C.
INTERRUPTED = 130
_PATH = click.Path(path_type=Path)


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    try:
        status = doors.main(list(arguments), prog_name="guest-service", standalone_mode=False)
    except click.ClickException as error:
        sys.stderr.write(f"guest-service: {escape(error.format_message())} (--help shows what is allowed)\n")
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except StartError as error:
        sys.stderr.write(f"{escape(str(error))}\n")
        return error.exit_status
    return status if isinstance(status, int) else 0


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from importlib import metadata  # noqa: PLC0415 -- 20 ms of each start

        click.echo(f"guest-service {metadata.version(DISTRIBUTION)}")
        context.exit()


class _Doors(click.Group):
    """The commands, of which boot-gate and doctor are imported only when they are opened or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        return sorted([*super().list_commands(ctx), "boot-gate", "doctor"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name == "boot-gate":
            from guest_service.boot_gate.cli import boot_gate  # noqa: PLC0415 -- as the class says

            return boot_gate
        if cmd_name == "doctor":
            from guest_service.doctor.cli import doctor  # noqa: PLC0415 -- as the class says

            return doctor
        return super().get_command(ctx, cmd_name)


_EPILOG = """COMMAND --help says more, the exit status included.

\b
Completion of commands and options, in ~/.bashrc (zsh_source and fish_source for other shells):
  eval "$(_GUEST_SERVICE_COMPLETE=bash_source guest-service)"
"""


@click.group(cls=_Doors, no_args_is_help=False, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version and exit."
)
def doors() -> None:
    """The guest agent: shows this machine and its GPUs to the host."""


@doors.command(short_help="Serve the guest's API until SIGTERM or SIGINT.")
@click.option("--config", type=_PATH, metavar="FILE", help="Configuration (TOML); without it the defaults hold.")
@click.option(
    "--grpc",
    multiple=True,
    metavar="ADDR",
    help="Serve gRPC there: unix:/path, HOST:PORT, vsock:CID:PORT (default unix:/run/guest-service/guest.sock). Repeatable.",
)
@click.option(
    "--http", metavar="ADDR|off", help="Serve pages and /metrics there: HOST:PORT or unix:/path (default 127.0.0.1:8090)."
)
@click.option(
    "--simulate",
    metavar="RACK",
    help="Show the GPUs of a rack instead of real ones: h200, h200x8, none, no-driver, sick-h200x8 or a file.",
)
@click.option("--sysfs", type=_PATH, metavar="DIR", help="Root of sysfs (default /sys).")
@click.option("--procfs", type=_PATH, metavar="DIR", help="Root of procfs (default /proc).")
@click.option("--nvml-library", type=_PATH, metavar="FILE", help="Load this libnvidia-ml instead of the system's.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Lines on stderr as text or JSON (default text).")
def serve(  # noqa: PLR0917 -- click passes options by name
    config: Path | None,
    grpc: tuple[str, ...],
    http: str | None,
    simulate: str | None,
    sysfs: Path | None,
    procfs: Path | None,
    nvml_library: Path | None,
    log_format: Literal["text", "json"] | None,
) -> int:
    """Serve the guest's API until SIGTERM or SIGINT.

    SIGHUP takes changes of http.public_… and log.level. Lines about what happens go to stderr, nothing to stdout.

    Exit status: 0 ended by a signal, with the calls in flight finished; 1 an address cannot be listened on; 2 misuse, or a configuration
    that is refused.
    """
    from guest_service.config import Flags, load_config  # noqa: PLC0415 -- --help must not pay for it

    flags = Flags(
        grpc=grpc,
        http=http,
        simulate=simulate,
        sysfs=sysfs,
        procfs=procfs,
        nvml_library=nvml_library,
        log_format=log_format,
    )
    settings = load_config(config, flags)
    from guest_service.app import run  # noqa: PLC0415 -- gRPC is imported only for a configuration that is right

    return run(settings, lambda: load_config(config, flags))


@doors.command("check-config", short_help="Check a configuration as serve would; serve nothing.")
@click.option("--config", type=_PATH, metavar="FILE", required=True, help="The configuration (TOML) to check.")
def check_config(config: Path) -> int:
    """Check a configuration as serve would; serve nothing.

    Exit status: 0 serve would take it, 2 refused, with file, key and what is allowed on stderr.
    """
    from guest_service.config import Flags, load_config  # noqa: PLC0415 -- --help must not pay for it

    settings = load_config(config, Flags())
    from guest_service.app import build  # noqa: PLC0415 -- as for serve

    build(settings)
    click.echo(f"{config}: ok, gRPC on {', '.join(settings.grpc.listen)}, HTTP on {settings.http.listen}")
    return 0


# The collector reads these by itself, before this module is imported; they stand here for completion and for the list of commands.
@doors.command("gpu-info", short_help="Take one GPU sample and print it as a line of JSON.")
@click.option("--simulate", metavar="RACK", help="Sample a simulated rack: h200, h200x8, none, no-driver, sick-h200x8 or a file.")
@click.option("--nvml-library", metavar="FILE", help="Load NVML from exactly this file instead of libnvidia-ml.so.1.")
@click.option(
    "--groups",
    metavar="LIST",
    help=f"Ask for these groups of values beside the base values, with commas between: {', '.join(GROUPS)}.",
)
@click.option(
    "--process-names",
    metavar="DIR",
    help="Tell the names of the processes in the group processes, read from this procfs (/proc).",
)
def gpu_info(simulate: str | None, nvml_library: str | None, groups: str | None, process_names: str | None) -> int:
    """Take one GPU sample and print it as a line of JSON: the contract's GpuInfoResponse.

    Exit status: 0 with a result ("no driver" is one), 1 stdout cannot be written, 2 misuse, or a rack that is refused.
    """
    from guest_service.collector import gpu_info as collector  # noqa: PLC0415 -- normally answered before this module

    given = {"--simulate": simulate, "--nvml-library": nvml_library, "--groups": groups, "--process-names": process_names}
    return collector.main([word for name, value in given.items() if value is not None for word in (name, value)])


@doors.command(short_help="List the display devices on the PCI bus.")
@click.option("--sysfs", type=_PATH, default=Path("/sys"), metavar="DIR", help="Root of sysfs (default /sys).")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="Form of the answer (default table).")
def inventory(sysfs: Path, output: str) -> int:
    """List the display devices on the PCI bus.

    Exit status: 0 listed, no device included; 1 the bus cannot be read, or an entry of it: the others are listed; 2 misuse.
    """
    from guest_service.inventory import InventoryError, survey_bus  # noqa: PLC0415 -- --help must not pay for it

    try:
        found = survey_bus(sysfs)
    except InventoryError as error:
        sys.stderr.write(f"guest-service: {escape(str(error))}\n")
        return 1
    for entry in found.unreadable:
        sys.stderr.write(f"guest-service: {escape(entry.reason)}\n")
    if output == "json":
        click.echo(found.to_json())
    else:
        if found.cards:
            click.echo(_table(found.to_rows()))
        click.echo(f"{found.counts} (virtual functions are not counted)")
    return 1 if found.unreadable else 0


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
