"""The TLS files of the agent's TCP listeners."""

from __future__ import annotations

import time
from collections.abc import Sequence

from guest_service.config import grpc_addresses
from guest_service.doctor.machine import Guest
from guest_transport.doctor.checks import in_thread
from guest_transport.doctor.findings import Finding, note
from guest_transport.doctor.tls_files import hosts_to_name, judge_tls, read_tls, server_files


async def examine_tls(guest: Guest) -> Sequence[Finding]:
    """`[tls]`."""
    if guest.config.tls is None:
        return [note("no TLS is configured: TCP listeners, if any, are plain")]
    files = server_files(guest.config.tls)
    return judge_tls(await in_thread(lambda: read_tls(files)), time.time(), hosts_to_name(grpc_addresses(guest.config)))
