"""The TLS files of the proxy: [tls], [guest_tls], and each guest's own tls table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from guest_transport.doctor.checks import in_thread
from guest_transport.doctor.findings import Finding, note
from guest_transport.doctor.tls_files import TlsFiles, hosts_to_name, judge_tls, read_tls, server_files
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.directory.guest_tls_settings import GuestTlsSettings
from vmm_proxy.doctor.machine import Host


async def examine_tls(host: Host) -> Sequence[Finding]:
    """All of them."""
    known = await host.known.get()
    wanted = [*_of_config(host), *_of_guests(known.guests)]
    if not wanted:
        return [note("no TLS is configured")]
    readings = await in_thread(lambda: [read_tls(files) for files in wanted])
    return [finding for reading in readings for finding in judge_tls(reading, time.time(), hosts_to_name(host.listen()))]


def _of_config(host: Host) -> list[TlsFiles]:
    found = [] if host.config.tls is None else [server_files(host.config.tls)]
    match host.config.guest_tls:
        case GuestTlsSettings(authorities=authorities, certificate=shown, key=own_key):
            found.append(TlsFiles("guest_tls", _path(shown), _path(own_key), _path(authorities)))
    return found


def _of_guests(guests: Sequence[GuestEntry]) -> list[TlsFiles]:
    own = ((entry.id, entry.tls.files) for entry in guests if entry.tls is not None)
    return [TlsFiles(f"tls of guest {guest_id}", files.certificate, files.key, files.authorities) for guest_id, files in own]


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
