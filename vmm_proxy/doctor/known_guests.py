"""The guests that the configuration, the registered file, the folder and libvirt name, and each entry that is refused with its reason.

Read in the proxy's own order and by its own rules, into a directory of the doctor's own; unlike the proxy's start, an entry that is refused
does not end it. libvirt is asked by the proxy's own reporter process, once, within a bound.
"""

from __future__ import annotations

import asyncio
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
from vmm_proxy.directory.guest_tls import GuestTls
from vmm_proxy.directory.guest_tls_settings import guest_tls
from vmm_proxy.directory.libvirt.follower import reporter_command
from vmm_proxy.directory.libvirt.guests import SOURCE as LIBVIRT
from vmm_proxy.directory.libvirt.guests import LibvirtGuests
from vmm_proxy.directory.libvirt.line_process import LineProcess
from vmm_proxy.directory.libvirt.report import LINE_LIMIT_BYTES, Domain, read_report
from vmm_proxy.directory.libvirt.settings import LibvirtSettings, check_libvirt, require_module
from vmm_proxy.directory.registered import RegisteredGuests

# libvirtd lists a thousand domains in a second or two; below a check's own bound, so that the reason is told.
LIBVIRT_SECONDS = 6.0


@dataclass(frozen=True, slots=True)
class LibvirtReading:
    """What libvirt told: how many running domains, and those that are refused; `problem` when it told nothing."""

    domains: int = 0
    refused: tuple[str, ...] = ()
    # Domains that somebody wrote down, which comes first.
    written_down: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class KnownGuests:
    """The directory that the proxy would have. `usual_tls` None: no [guest_tls], or one whose files are wrong (`tls_refused`)."""

    guests: tuple[GuestEntry, ...]
    refused: tuple[str, ...]
    usual_tls: GuestTls | None
    tls_refused: str
    # None: libvirt is not followed.
    libvirt: LibvirtReading | None


async def read_known(config: ProxyConfig, where: str) -> KnownGuests:
    """Everything that names guests; raises nothing."""
    directory, refused = Directory(), list[str]()
    usual, tls_refused = await in_thread(lambda: _usual_tls(config, where))
    plain = config.grpc.allow_plaintext or config.guest_tls is not None
    await in_thread(lambda: _read_files(config, where, directory, refused, plain=plain))
    libvirt = await _read_libvirt(config.libvirt, directory, where)
    return KnownGuests(tuple(directory.after()), tuple(refused), usual, tls_refused, libvirt)


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


async def _read_libvirt(settings: LibvirtSettings, directory: Directory, where: str) -> LibvirtReading | None:
    if settings.uri is None:
        return None
    try:
        check_libvirt(settings, where)
        require_module()
    except SettingsError as error:
        return LibvirtReading(problem=str(error))
    domains = await ask_libvirt(reporter_command(settings.uri, Path("/sys")))
    if isinstance(domains, str):
        return LibvirtReading(problem=domains)
    guests = LibvirtGuests(directory, port=settings.port)
    guests.apply(domains)
    reasons = {uuid: f"domain {uuid}: {reason}" for uuid, reason in guests.refused.items()}
    written_down = {uuid for uuid in reasons if (entry := directory.get(uuid)) is not None and entry.source != LIBVIRT}
    return LibvirtReading(
        len(domains),
        refused=tuple(reason for uuid, reason in reasons.items() if uuid not in written_down),
        written_down=tuple(sorted(written_down)),
    )


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
