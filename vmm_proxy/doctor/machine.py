"""The host that is looked at: its configuration as far as it can be read, and the guests that it names, read once for all checks.

A configuration that serve refuses for one of its files (a certificate, a token file) is still read for everything else, so that one
fault does not hide the others; only one that is no configuration at all leaves checks out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from guest_transport.addresses import Address, AddressError, parse_address
from guest_transport.doctor.checks import in_thread
from guest_transport.errors import SettingsError
from guest_transport.settings.read import read_settings
from vmm_proxy.config import ProxyConfig, read_setup
from vmm_proxy.doctor.known_guests import KUBEVIRT_SECONDS, LIBVIRT_SECONDS, KnownGuests, read_known

# Where the unit's own ExecStart= looks (deploy/systemd/vmm-proxy.service), and who the proxy is there.
CONFIG_FILE = Path("/etc/vmm-proxy/config.toml")
UNIT = "vmm-proxy"
UNIT_USER = "vmm-proxy"

# libvirt and an API server have their own bounds; files are read in well under a second, also ten thousand of them.
READ_SECONDS = LIBVIRT_SECONDS + KUBEVIRT_SECONDS + 4.0
_WHAT = "the files that name guests"

T = TypeVar("T")


class Once(Generic[T]):
    """A reading that several checks share: made when the first of them asks, and not broken off with it. `what` names it."""

    def __init__(self, what: str, read: Callable[[], Awaitable[T]]) -> None:
        self._what = what
        self._read = read
        self._task: asyncio.Future[T] | None = None

    async def get(self) -> T:
        """What was read; raises what reading raised, and TimeoutError after READ_SECONDS."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._read())
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await asyncio.shield(self._task)
        except TimeoutError as error:
            raise TimeoutError(f"{self._what} could not be read within {READ_SECONDS:g} s") from error


@dataclass(frozen=True, slots=True)
class Host:
    """`unreadable`: why the file is no configuration, empty when it is one; then `config` has the defaults."""

    config: ProxyConfig
    known: Once[KnownGuests]
    file: Path | None = None
    unreadable: str = ""
    dev: Path = Path("/dev")
    sysfs: Path = Path("/sys")

    @property
    def where(self) -> str:
        """How messages name the configuration."""
        return str(self.file) if self.file else "defaults"

    def listen(self) -> list[Address | SettingsError]:
        """grpc.listen and grpc.read_only_listen, parsed as far as they parse."""
        parsed: list[Address | SettingsError] = []
        grpc = self.config.grpc
        for key, texts in (("grpc.listen", grpc.listen), ("grpc.read_only_listen", grpc.read_only_listen)):
            for text in texts:
                try:
                    parsed.append(parse_address(text))
                except AddressError as error:
                    parsed.append(SettingsError(f"{key}: {error}"))
        return parsed


def find_host(file: Path | None) -> Host:
    """The host of the configuration in `file`; without one, of the unit's file if it is there, else of the defaults. Blocks."""
    if file is None and CONFIG_FILE.exists():
        file = CONFIG_FILE
    where = str(file) if file else "defaults"
    try:
        config = read_settings(file, ProxyConfig) if file else ProxyConfig()
    except SettingsError as error:
        config = ProxyConfig()
        return Host(config, Once(_WHAT, lambda: read_known(config, where)), file, unreadable=str(error))
    return Host(config, Once(_WHAT, lambda: read_known(config, where)), file)


async def refusal(host: Host) -> str:
    """Why serve would not take the configuration; empty when it would."""
    if host.unreadable:
        return host.unreadable
    try:
        await in_thread(lambda: read_setup(host.file))
    except SettingsError as error:
        return str(error)
    return ""
