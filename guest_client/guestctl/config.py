"""The file of contexts, as kubectl's users expect one: which proxy, whose credentials, which guests, under a name.

    $XDG_CONFIG_HOME/guestctl/config.toml, or ~/.config/guestctl/config.toml

A context belongs together: where a flag or the environment names another proxy, the credentials and the selector of the context in use are
not used there. Files are named, never held: the file may be read by anybody, and nothing here writes a secret. `use` changes its one line
and leaves comments alone. Rejected: writing contexts from the command line (a file of ten lines is quicker written than asked for), and an
environment variable for the file (XDG_CONFIG_HOME is one).
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from guest_client.guestctl.hosts import HostsError, read_hosts
from guest_client.guestctl.selector import SelectorError, read_pairs, together
from guest_transport.addresses import AddressError, parse_address
from guest_transport.errors import SettingsError
from guest_transport.process.logs import escape
from guest_transport.settings.read import convert, parse_settings, read_file

CONTEXT_NAME_RULE = "1 to 63 characters of [A-Za-z0-9._-]"
_CONTEXT_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")
_CURRENT = re.compile(r"""^([ \t]*current[ \t]*=[ \t]*)("[^"\n]*"|'[^'\n]*')""", re.MULTILINE)
_FIRST_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)


class Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One context; a path is absolute, begins with ~, or is relative to the file's folder."""

    # `ADDR` or `NAME=ADDR`, one or several; or a file of them.
    proxy: str | tuple[str, ...] = ()
    hosts: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    token_file: str = ""
    tls: bool = False
    # `KEY=VALUE,KEY=VALUE`, as -l takes it.
    selector: str = ""

    def proxies(self) -> tuple[str, ...]:
        """The proxies, as --proxy takes them."""
        return (self.proxy,) if isinstance(self.proxy, str) else self.proxy

    def hosts_file(self) -> Path | None:
        """The file of proxies, as --hosts takes it."""
        return _beside(self.hosts) if self.hosts else None

    def files(self) -> dict[str, Path]:
        """The files of its credentials, by the name of the flag."""
        named = {"ca": self.ca, "cert": self.cert, "key": self.key, "token_file": self.token_file}
        return {name: _beside(file) for name, file in named.items() if file}


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file; what is in a context is checked by itself, or a message could not say in which."""

    current: str = ""
    contexts: Mapping[str, Mapping[str, object]] = {}


@dataclass(frozen=True, slots=True)
class Config:
    """What the file says."""

    current: str = ""
    contexts: Mapping[str, Context] = field(default_factory=dict)

    def context(self, name: str) -> Context:
        """The context of this name; raises SettingsError."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise SettingsError(escape(f"{path()}: no context {name[:128]}; there is: {known} (write it as [contexts.NAME])"))
        return self.contexts[name]


def _beside(file: str) -> Path:
    return path().parent / os.path.expanduser(file)  # noqa: PTH111 - as in path()


def path() -> Path:
    """Where the file is, if there is one. XDG's rule: what is not absolute is ignored."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    # Path.expanduser fails where a user has no home (a container with any uid).
    return Path(folder if folder.startswith("/") else os.path.expanduser("~/.config")) / "guestctl/config.toml"  # noqa: PTH111


def read() -> Config:
    """The file, checked; empty when there is none. Raises SettingsError, which names file, key and what to do.

    What cannot even be looked for (no home, or the home of another user under sudo) is not there.
    """
    try:
        there = path().is_absolute() and bool(path().stat())
    except OSError:
        there = False
    return parse(read_file(path())) if there else Config()


def parse(data: bytes) -> Config:
    """What a file of these bytes says; raises SettingsError."""
    file = parse_settings(data, str(path()), _File)
    config = Config(file.current, {name: _context(name, tree) for name, tree in file.contexts.items()})
    if config.current:
        config.context(config.current)
    return config


def _context(name: str, tree: Mapping[str, object]) -> Context:
    place = f"{path()}: contexts.{name}"
    if not _CONTEXT_NAME.fullmatch(name):
        raise SettingsError(escape(f"{place}: a context's name has {CONTEXT_NAME_RULE}"))
    if "token" in tree:
        raise SettingsError(f"{place}: token: a token stands in a file of its own, and token_file names that")
    context = convert(tree, place, Context)
    if context.proxy and context.hosts:
        raise SettingsError(f"{place}: proxy and hosts exclude each other: leave one out")
    try:
        for host in read_hosts(context.proxies()):
            parse_address(host.address)
    except (AddressError, HostsError) as error:
        raise SettingsError(escape(f"{place}: proxy: {error}")) from error
    try:
        together([read_pairs(context.selector)])
    except SelectorError as error:
        raise SettingsError(escape(f"{place}: selector: {error}")) from error
    return context


def use(name: str) -> None:
    """Make `name` the context in use; raises SettingsError. The rest of the file stays as it is, and it is replaced as a whole."""
    read().context(name)
    target = path().resolve()
    text = read_file(target).decode("utf-8")
    table = _FIRST_TABLE.search(text)
    head, tables = (text[: table.start()], text[table.start() :]) if table else (text, "")
    line = f'current = "{name}"'
    head = _CURRENT.sub(rf'\g<1>"{name}"', head, count=1) if _CURRENT.search(head) else f"{line}\n{head}"
    changed = (head + tables).encode()
    if parse(changed).current != name:
        raise SettingsError(f"{path()}: cannot be changed safely: write the line {line} above the first table")
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".config-", delete=False) as new:
            new.write(changed)
            os.fchmod(new.fileno(), target.stat().st_mode & 0o777)
        Path(new.name).replace(target)
    except OSError as error:
        raise SettingsError(f"{path()}: cannot be written: {error.strerror}") from error
