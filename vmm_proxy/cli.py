"""The entry points of the command `vmm-proxy`: flags in, exit status out.

Nothing is decided here that a file could decide; results go to stdout, everything else to stderr. gRPC is imported by `serve`
only, so that help and `check-config` are quick.
"""

from __future__ import annotations

import functools
import logging
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from guest_transport.errors import SettingsError, StartError
from guest_transport.process.logs import escape, log_to_stderr

_FILE = click.Path(path_type=Path)
# What a shell calls the end by Ctrl-C.
INTERRUPTED = 130
# Longer than any token, so that a wrong file is refused and not read whole.
_TOKEN_LINE_LIMIT = 1024


_EPILOG = """COMMAND --help says more, the exit status included.

\b
Completion of commands and options, in ~/.bashrc (zsh_source and fish_source for other shells):
  eval "$(_VMM_PROXY_COMPLETE=bash_source vmm-proxy)"
"""


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="guestscope", prog_name="vmm-proxy", message="%(prog)s %(version)s")
def main() -> None:
    """Runs on the host and answers for every guest by its VM id."""


def run(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit status. Misuse is one line on stderr, not click's page around it."""
    try:
        status = main.main(list(arguments), prog_name="vmm-proxy", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"vmm-proxy: {escape(error.format_message())} (--help shows what is allowed)", err=True)
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    return status if isinstance(status, int) else 0


@main.command(short_help="Serve until SIGTERM or SIGINT.")
@click.option("--config", type=_FILE, metavar="FILE", help="Configuration (TOML); without it the defaults hold.")
@click.option(
    "--grpc",
    "grpc_flags",
    metavar="ADDR",
    multiple=True,
    help="Serve gRPC there, and not at grpc.listen (default unix:/run/vmm-proxy/vmm-proxy.sock). Repeatable.",
)
@click.option(
    "--http", "http_flag", metavar="ADDR|off", help="Serve pages there, and not at http.listen (default 127.0.0.1:9880)."
)
@click.option(
    "--guest",
    "guest_flags",
    metavar="ID=ADDR",
    multiple=True,
    help="One more guest: vsock:CID:PORT, hvsock:/path:PORT, unix:/path or HOST:PORT, dstack+ in front for dstack's agent. Repeatable.",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="Lines on stderr (default text).")
def serve(
    config: Path | None, grpc_flags: tuple[str, ...], http_flag: str | None, guest_flags: tuple[str, ...], log_format: str
) -> None:
    """Serve until SIGTERM or SIGINT; calls in progress are finished first.

    SIGHUP reads access rules and certificates again, and opens the audit log anew. Lines about what happens go to stderr, nothing to
    stdout.

    Exit status: 0 ended by a signal; 1 an address cannot be listened on; 2 misuse, or a configuration that is refused.
    """
    from vmm_proxy import app  # noqa: PLC0415 - gRPC takes 0.1 s to import and help does not need it
    from vmm_proxy.config import read_setup  # noqa: PLC0415 - the same

    read = functools.partial(read_setup, config, grpc_flags=grpc_flags, http_flag=http_flag, guest_flags=guest_flags)

    log_to_stderr(log_format)
    _allow_many_descriptors()
    try:
        setup = read()
    except StartError as error:
        _refuse(error)
    raise SystemExit(app.run(setup, read))


@main.command(short_help="Check a configuration as serve would; serve nothing.")
@click.option("--config", type=_FILE, metavar="FILE", required=True, help="The configuration (TOML) to check.")
def check_config(config: Path) -> None:
    """Check a configuration as serve would, with the files of directory.dir; serve nothing.

    Exit status: 0 serve would take it, 2 refused, with file, key and what is allowed on stderr.
    """
    from vmm_proxy.app import check_sources  # noqa: PLC0415 - see serve
    from vmm_proxy.config import read_setup  # noqa: PLC0415 - see serve

    # What is refused is told below; the folder's own warnings of it are for the log of a server.
    logging.disable(logging.CRITICAL)
    try:
        setup = read_setup(config)
        count, refused = check_sources(setup)
    except StartError as error:
        _refuse(error)
    for reason in refused:
        click.echo(reason, err=True)
    if refused:
        raise SystemExit(SettingsError.exit_status)
    followed = [name for name, setting in (("libvirt", setup.libvirt), ("KubeVirt", setup.kubevirt)) if setting]
    guests = " and ".join([f"{count} guest{'' if count == 1 else 's'}", *(f"those of {name}" for name in followed)])
    listen = ", ".join(map(str, (*setup.listen, *setup.read_only_listen)))
    click.echo(f"{config}: ok, {guests}, gRPC on {listen}, pages on {setup.pages.listen or 'no address'}")


@main.command(short_help="Check what can be wrong on this host; say what to do.")
@click.option(
    "--config",
    type=_FILE,
    metavar="FILE",
    help="Configuration (TOML); default /etc/vmm-proxy/config.toml if it is there, else the defaults.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Form of the report (default text).")
def doctor(config: Path | None, output: str) -> int:
    """Check what can be wrong on this host and with its guests.

    One line each, with what to do. Changes nothing, and may run beside the proxy; run it as the user that the proxy runs as.

    Exit status: 0 nothing is wrong, 1 something is, 2 misuse.
    """
    from vmm_proxy.doctor.cli import run_doctor  # noqa: PLC0415 - see serve

    return run_doctor(config, output)


def _allow_many_descriptors() -> None:
    """One connection per guest: the usual soft limit of 1024 would end at a thousand guests, and the hard limit is the operator's word."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@main.command()
def hash_token() -> None:
    """Print what stands for a token in access.token_file.

    The token is read from stdin. Make one with: openssl rand -hex 32

    Exit status: 0 printed; 2 misuse, or a text that is no token (32 to 512 printable characters without spaces).
    """
    from vmm_proxy.policy.tokens import TOKEN_RULE, token_hash, valid_token  # noqa: PLC0415 - see serve

    if sys.stdin.isatty():
        token = click.prompt("Token", hide_input=True, err=True)
    else:
        token = sys.stdin.readline(_TOKEN_LINE_LIMIT).removesuffix("\n")
    if not valid_token(token):
        _refuse(SettingsError(f"hash-token: the token must be {TOKEN_RULE}"))
    click.echo(token_hash(token))


def _refuse(error: StartError) -> None:
    click.echo(str(error), err=True)
    raise SystemExit(error.exit_status)
