"""Proxies as they are named: `ADDR` or `NAME=ADDR` in --proxy and in the file of contexts, `NAME ADDR` in a file of hosts.

A host without a name is called by its address. Names are what guests of several hosts are told apart by, so none may stand for two, and no
address is asked twice. Rejected: finding hosts by DNS or an inventory (whoever has one writes the file).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from guest_transport.addresses import AddressError, parse_address

HOST_NAME_RULE = "1 to 63 characters of [A-Za-z0-9._-]"
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")
_NAMED = re.compile(rf"({_HOST_NAME.pattern})=(.*)")
# Ten thousand hosts take half a megabyte; more is a wrong file.
FILE_LIMIT_BYTES = 1024 * 1024


class HostsError(ValueError):
    """Hosts that cannot be asked; the message names the place and what is allowed."""


@dataclass(frozen=True, slots=True)
class Host:
    """A proxy, and what it is called."""

    name: str
    address: str


def read_hosts(texts: Iterable[str]) -> tuple[Host, ...]:
    """The hosts of --proxy; raises HostsError."""
    found = []
    for text in texts:
        named = _NAMED.fullmatch(text)
        name, address = named.groups() if named else (text, text)
        found.append(Host(name, address))
    return _apart(found)


def read_hosts_file(path: Path) -> tuple[Host, ...]:
    """The hosts in a file: `NAME ADDR` or `ADDR` a line, `#` begins a comment; raises HostsError."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_LIMIT_BYTES + 1).decode()
    except OSError as error:
        raise HostsError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise HostsError(f"{path}: not UTF-8 at byte {error.start}") from error
    if len(text) > FILE_LIMIT_BYTES:
        raise HostsError(f"{path}: larger than {FILE_LIMIT_BYTES} bytes")
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > 2 or (len(words) == 2 and not _HOST_NAME.fullmatch(words[0])):
            raise HostsError(f"{path}:{number}: a line is NAME ADDR or ADDR, a name {HOST_NAME_RULE}")
        try:
            parse_address(words[-1])
        except AddressError as error:
            raise HostsError(f"{path}:{number}: {error}") from error
        found.append(Host(words[0], words[-1]))
    if not found:
        raise HostsError(f"{path}: names no host: write NAME ADDR, one a line")
    try:
        return _apart(found)
    except HostsError as error:
        raise HostsError(f"{path}: {error}") from error


def _apart(hosts: Sequence[Host]) -> tuple[Host, ...]:
    for what, texts in (("called", [host.name for host in hosts]), ("at", [host.address for host in hosts])):
        twice = (
            next((text for at, text in enumerate(texts) if text in texts[:at]), None) if len(set(texts)) < len(texts) else None
        )
        if twice is not None:
            raise HostsError(f"two proxies {what} {twice}: leave one out, or name them apart (NAME=ADDR)")
    return tuple(hosts)
