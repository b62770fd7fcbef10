"""The doors of the command `vmm-proxy`: flags in, exit status out.

Nothing is decided here that a file could decide; results go to stdout, everything else to stderr. gRPC is imported by `serve`
only, so that help and `check-config` are quick.
"""

from __future__ import annotations

import gc
import importlib.metadata
import resource
from pathlib import Path

import click

from guest_transport.errors import SettingsError, StartError
from guest_transport.logs import log_to_stderr

# New objects between two looks for garbage; Python's own is 700.
GARBAGE_THRESHOLD_OBJECTS = 20_000

_FILE = click.Path(path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(importlib.metadata.version("guestscope"), prog_name="vmm-proxy")
def main() -> None:
    """Runs on the host and answers for every guest by its VM id."""


@main.command()
@click.option("--config", type=_FILE, help="TOML file; see deploy/vmm-proxy.example.toml.")
@click.option("--grpc", "grpc_flags", metavar="ADDR", multiple=True, help="Listen here instead of grpc.listen; repeat for more.")
@click.option("--http", "http_flag", metavar="ADDR|off", help="Serve pages here instead of at http.listen.")
@click.option(
    "--guest", "guest_flags", metavar="ID=ADDR", multiple=True, help="One more guest; its id must not stand in the file."
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def serve(
    config: Path | None, grpc_flags: tuple[str, ...], http_flag: str | None, guest_flags: tuple[str, ...], log_format: str
) -> None:
    """Serve until SIGTERM or SIGINT; calls in flight are finished first."""
    from guest_transport import serving  # noqa: PLC0415 - gRPC takes 0.1 s to import and help does not need it
    from vmm_proxy import app  # noqa: PLC0415 - the same
    from vmm_proxy.config import read_setup  # noqa: PLC0415 - the same

    log_to_stderr(log_format)
    _allow_many_descriptors()
    _collect_garbage_less_often()
    try:
        setup = read_setup(config, grpc_flags=grpc_flags, http_flag=http_flag, guest_flags=guest_flags)
    except StartError as error:
        _refuse(error)
    raise SystemExit(serving.run(lambda stop: app.serve(setup, stop)))


@main.command()
@click.option("--config", type=_FILE, required=True, help="The TOML file to check.")
def check_config(config: Path) -> None:
    """Check a configuration as `serve` would, and serve nothing."""
    from vmm_proxy.app import check_sources  # noqa: PLC0415 - see serve
    from vmm_proxy.config import read_setup  # noqa: PLC0415 - see serve

    try:
        setup = read_setup(config)
        refused = check_sources(setup)
    except StartError as error:
        _refuse(error)
    for reason in refused:
        click.echo(reason, err=True)
    if refused:
        raise SystemExit(SettingsError.exit_status)
    click.echo(f"{config}: ok, {len(setup.guests)} guests, listens on {', '.join(map(str, setup.listen))}")


def _allow_many_descriptors() -> None:
    """One connection per guest: the usual soft limit of 1024 would end at a thousand guests, and the hard limit is the operator's word."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _collect_garbage_less_often() -> None:
    """Python's own beat looks through everything that a collection over a thousand guests holds, again and again: 8 % of its time.

    What waits to be found is small: calls and answers leave no cycles behind, and failures a traceback each.
    """
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD_OBJECTS)


def _refuse(error: StartError) -> None:
    click.echo(str(error), err=True)
    raise SystemExit(error.exit_status)
