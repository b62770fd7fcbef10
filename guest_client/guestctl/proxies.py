"""Which proxies a command asks, and what is shown to each: flags win over the environment, the environment over the file of contexts.

A context is used as a whole or not at all: its credentials and its selector are meant for its proxies, so where --proxy, --hosts or
GUESTCTL_PROXY name others, the current context is left alone. One that is named by --context is used, and flags still win over it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from guest_client.guestctl.hosts import Host, HostsError, read_hosts, read_hosts_file
from guest_client.guestctl.request import ACCESS_VARIABLES, DEFAULT_PROXY, PROXY_VARIABLE, READ_ONLY_PROXY, Access, Proxy
from guest_client.guestctl.selector import read_pairs
from guest_transport.errors import SettingsError

if TYPE_CHECKING:
    from guest_client.guestctl.config import Context


@dataclass(frozen=True, slots=True)
class Asked:
    """The proxies, whether they are asked as several (a file of one is), and the labels of guests that are meant where nobody says."""

    proxies: tuple[Proxy, ...]
    several: bool
    labels: dict[str, str] = field(default_factory=dict)


def asked_proxies(given: Mapping[str, Any]) -> Asked:
    """By the shared options; raises click.UsageError."""
    if given["proxy"] and given["hosts"] is not None:
        raise click.UsageError("--proxy and --hosts exclude each other: give one")
    try:
        context = _context(given)
        hosts, several = _hosts(given, context)
    except (SettingsError, HostsError) as error:
        raise click.UsageError(str(error)) from error
    files = context.files() if context else {}
    tls = bool(given["tls"]) or (context is not None and context.tls)
    proxies = tuple(Proxy(host.name, host.address, _access(given, files, host, tls=tls, several=several)) for host in hosts)
    return Asked(proxies, several, dict(read_pairs(context.selector)) if context else {})


def _context(given: Mapping[str, Any]) -> Context | None:
    named: str | None = given["context"]
    elsewhere = given["proxy"] or given["hosts"] is not None or os.environ.get(PROXY_VARIABLE)
    if elsewhere and named is None:
        return None
    from guest_client.guestctl import config  # noqa: PLC0415 - msgspec is loaded only where the file may be used

    found = config.read()
    name = found.current if named is None else named
    return found.context(name) if name or named is not None else None


def _hosts(given: Mapping[str, Any], context: Context | None) -> tuple[tuple[Host, ...], bool]:
    if given["hosts"] is not None:
        return read_hosts_file(given["hosts"]), True
    if given["proxy"]:
        return read_hosts(given["proxy"]), len(given["proxy"]) > 1
    if context is not None and (file := context.hosts_file()):
        return read_hosts_file(file), True
    if context is not None and context.proxies():
        return read_hosts(context.proxies()), len(context.proxies()) > 1
    return read_hosts([os.environ.get(PROXY_VARIABLE) or usual_proxy()]), False


def usual_proxy() -> str:
    """The proxy of this host: at its read-only socket where the caller may open that one alone (connect(2) asks for write permission)."""
    may_open = [os.access(address.removeprefix("unix:"), os.W_OK) for address in (DEFAULT_PROXY, READ_ONLY_PROXY)]
    return READ_ONLY_PROXY if may_open == [False, True] else DEFAULT_PROXY


def _access(given: Mapping[str, Any], of_context: Mapping[str, Path], host: Host, *, tls: bool, several: bool) -> Access:
    """What is shown to one proxy. TLS is for those over TCP: of several the others are asked without; for a single one it is a mistake of
    whoever gave a flag or wrote the context, and refused later. What the environment says of TLS is for TCP alone."""
    over_tcp = not host.address.startswith(("unix:", "vsock:", "hvsock:"))
    from_environment = {
        name: Path(os.environ[variable])
        for name, variable in ACCESS_VARIABLES.items()
        if os.environ.get(variable) and (over_tcp or name == "token_file")
    }
    flags = {name: given[name] for name in ACCESS_VARIABLES if given[name] is not None}
    found = {**of_context, **from_environment, **flags}
    if several and not over_tcp:
        return Access(token_file=found.get("token_file"))
    return access(found, tls=tls)


def access(files: Mapping[str, Path], *, tls: bool) -> Access:
    """The files by the names of their flags; each of those of TLS implies TLS."""
    ca, certificate, key = (files.get(name) for name in ("ca", "cert", "key"))
    return Access(tls or any((ca, certificate, key)), ca, certificate, key, files.get("token_file"))
