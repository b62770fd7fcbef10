"""The guests that the configuration, the registered file, the folder, libvirt and KubeVirt name, and why an entry is refused.

Read in the proxy's own order and by its own rules, into a directory of the doctor's own; unlike the proxy's start, an entry that is refused
does not end it. libvirt is asked by the proxy's own reporter process, an API server by the proxy's own client; each once, within a bound.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from guest_transport.doctor.checks import in_thread
from guest_transport.errors import SettingsError
from guest_transport.process.start_errors import why_not_started
from vmm_proxy.config import ProxyConfig
from vmm_proxy.directory.directory import Directory, DirectoryError, GuestEntry
from vmm_proxy.directory.entry import guest_entry
from vmm_proxy.directory.folder import GuestFolder
from vmm_proxy.directory.found import FoundGuests
from vmm_proxy.directory.guest_tls import GuestTls
from vmm_proxy.directory.guest_tls_settings import guest_tls
from vmm_proxy.directory.kubevirt import settings as kubevirt_settings
from vmm_proxy.directory.libvirt.follower import reporter_command
from vmm_proxy.directory.libvirt.guests import LibvirtGuests
from vmm_proxy.directory.libvirt.line_process import LineProcess
from vmm_proxy.directory.libvirt.report import LINE_LIMIT_BYTES, Domain, read_report
from vmm_proxy.directory.libvirt.settings import LibvirtSettings, check_libvirt, require_module
from vmm_proxy.directory.registered import RegisteredGuests

# libvirtd lists a thousand domains in a second or two; below a check's own bound, so that the reason is told.
LIBVIRT_SECONDS = 6.0
# All namespaces together; an API server under load answers a list in seconds.
KUBEVIRT_SECONDS = 6.0


@dataclass(frozen=True, slots=True)
class FoundReading:
    """What libvirt or KubeVirt told: how many there are, and those that are refused; `problem` when it told nothing."""

    count: int = 0
    refused: tuple[str, ...] = ()
    # Ids that somebody wrote down, which comes first.
    written_down: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class KnownGuests:
    """The directory that the proxy would have. `usual_tls` None: no [guest_tls], or one whose files are wrong (`tls_refused`)."""

    guests: tuple[GuestEntry, ...]
    refused: tuple[str, ...]
    usual_tls: GuestTls | None
    tls_refused: str
    # None: it is not followed.
    libvirt: FoundReading | None
    kubevirt: FoundReading | None


async def read_known(config: ProxyConfig, where: str) -> KnownGuests:
    """Everything that names guests; raises nothing."""
    directory, refused = Directory(), list[str]()
    usual, tls_refused = await in_thread(lambda: _usual_tls(config, where))
    plain = config.grpc.allow_plaintext or config.guest_tls is not None
    await in_thread(lambda: _read_files(config, where, directory, refused, plain=plain))
    libvirt = await _read_libvirt(config.libvirt, directory, where)
    kubevirt = await _read_kubevirt(config.kubevirt, directory, where)
    return KnownGuests(tuple(directory.after()), tuple(refused), usual, tls_refused, libvirt, kubevirt)


def _usual_tls(config: ProxyConfig, where: str) -> tuple[GuestTls | None, str]:
    try:
        return guest_tls(config.guest_tls, f"{where}: guest_tls"), ""
    except SettingsError as error:
        return None, str(error)


def _read_files(config: ProxyConfig, where: str, directory: Directory, refused: list[str], *, plain: bool) -> None:
    for number, guest in enumerate(config.guest):
        place = f"{where}: guest[{number}]"
        try:
            directory.add(guest_entry(guest, f"{place}.", source=where, allow_plaintext=plain))
        except SettingsError as error:
            refused.append(str(error))
        except DirectoryError as error:
            refused.append(f"{place}: {error}")
    if config.directory.registered_file is not None:
        try:
            RegisteredGuests(Path(config.directory.registered_file), directory, allow_plaintext=plain).load()
        except SettingsError as error:
            refused.append(str(error))
    if config.directory.dir is not None:
        folder = GuestFolder(Path(config.directory.dir), directory, allow_plaintext=plain)
        folder.scan()
        refused.extend(folder.refused.values())


async def _read_libvirt(settings: LibvirtSettings, directory: Directory, where: str) -> FoundReading | None:
    if settings.uri is None:
        return None
    try:
        check_libvirt(settings, where)
        require_module()
    except SettingsError as error:
        return FoundReading(problem=str(error))
    domains = await ask_libvirt(reporter_command(settings.uri, Path("/sys")))
    if isinstance(domains, str):
        return FoundReading(problem=domains)
    guests = LibvirtGuests(directory, port=settings.port)
    guests.apply(domains)
    return _reading(len(domains), guests.found, "domain")


def _reading(count: int, found: FoundGuests, what: str) -> FoundReading:
    reasons = [f"{what} {each}: {reason}" for each, reason in found.refused.items() if each not in found.written_down]
    return FoundReading(count, tuple(reasons), tuple(sorted(found.written_down)))


async def _read_kubevirt(settings: kubevirt_settings.KubevirtSettings, directory: Directory, where: str) -> FoundReading | None:
    try:
        setup = kubevirt_settings.check_kubevirt(settings, where, os.environ)
        if setup is None:
            return None
        kubevirt_settings.require_module()
    except SettingsError as error:
        return FoundReading(problem=str(error)) if settings.node else None
    kubevirt = await in_thread(lambda: importlib.import_module("vmm_proxy.doctor.kubevirt"))
    told = await kubevirt.read_instances(setup, directory, KUBEVIRT_SECONDS)
    return FoundReading(problem=told) if isinstance(told, str) else _reading(told[0], told[1].found, "instance")


async def ask_libvirt(command: Sequence[str], bound_seconds: float = LIBVIRT_SECONDS) -> Sequence[Domain] | str:
    """The running domains that the reporter `command` tells of; in words why there is no answer."""
    try:
        process = await LineProcess.start(command, line_limit_bytes=LINE_LIMIT_BYTES)
    except OSError as error:
        return f"{command[0]} cannot be started: {why_not_started(error)}"
    try:
        async with asyncio.timeout(bound_seconds):
            while line := await process.line():
                report = read_report(line)
                if report.problem:
                    return report.problem
                if report.domains is not None:
                    return report.domains
    except TimeoutError:
        return f"libvirt has not answered within {bound_seconds:g} s"
    except ValueError as error:
        return f"the process that talks to libvirt wrote what is no report: {error}"
    finally:
        await process.end()
    return "the process that talks to libvirt ended without a word"
