"""The checks of `guest-service doctor`, in the order of the report. docs/doctor.md has the same list; a test holds the two together."""

from __future__ import annotations

from collections.abc import Sequence

from guest_service.doctor import cards, cid, doors, facts, kernel_log, library, sample, tls
from guest_service.doctor.machine import UNIT, Guest
from guest_transport.doctor.checks import Check, in_thread
from guest_transport.doctor.clock import examine_clock
from guest_transport.doctor.findings import Finding, ok, wrong
from guest_transport.doctor.tasks import judge_task_limits, read_task_limits
from guest_transport.errors import SettingsError
from guest_transport.tls_settings import server_tls


async def examine_config(guest: Guest) -> Sequence[Finding]:
    """Whether serve would take the configuration."""
    refused = guest.refused
    try:
        await in_thread(lambda: server_tls(guest.config.tls))
    except SettingsError as error:
        refused = refused or str(error)
    if refused:
        return [wrong(refused, "correct it; guest-service check-config tries it again")]
    config = guest.config
    where = guest.file or "no file, the defaults hold"
    return [ok(f"{where}: gRPC on {', '.join(config.grpc.listen)}, HTTP: {config.http.listen}")]


async def examine_tasks(_guest: Guest) -> Sequence[Finding]:
    """Whether the agent can still start what it must."""
    return judge_task_limits(await in_thread(lambda: read_task_limits(UNIT)))


CHECKS: tuple[Check[Guest], ...] = (
    Check("config", "the configuration is one that serve takes", examine_config, without_config=True),
    Check("pci", "NVIDIA cards on the PCI bus, and the kernel driver of each", cards.examine_pci, without_config=True),
    Check("driver", "the kernel module nvidia is loaded", cards.examine_driver, without_config=True),
    Check(
        "library",
        "libnvidia-ml can be loaded; from where, or where it was looked for; nvidia-ml-py is not replaced",
        library.examine_library,
        without_config=True,
    ),
    Check(
        "devices", "/dev/nvidiactl and /dev/nvidia* are there and open to this user", cards.examine_devices, without_config=True
    ),
    Check(
        "sample",
        "one sample through the collector: its error, each card and its health, the count against the bus, confidential computing",
        sample.examine_sample,
        without_config=True,
        bound_seconds=sample.bound_seconds,
    ),
    Check("kernel-log", "the kernel log can be read, which has the driver's XIDs", kernel_log.examine_kernel_log),
    Check("cid", "vsock, this machine's CID, and each vsock address of grpc.listen", cid.examine_cid),
    Check(
        "grpc", "each Unix and TCP address of grpc.listen: mode, who holds it, and whether an agent answers", doors.examine_grpc
    ),
    Check("http", "the page: who holds its address, and whether it answers and is ready", doors.examine_http),
    Check("tls", "certificate and key fit, their modes, their end, and the names in them", tls.examine_tls),
    Check("containers", "the container engine answers", facts.examine_containers),
    Check("identity", "the identity file, or the machine id in its place, names this guest", facts.examine_identity),
    Check("power", "the command that Shutdown runs is there", facts.examine_power),
    Check("boot-gate", "the policy of the boot gate is valid, and its verifier is there", facts.examine_boot_gate),
    Check("tasks", "how many processes and threads may still be started", examine_tasks, without_config=True),
    Check("clock", "the wall clock is sane, and somebody keeps it synchronised", examine_clock, without_config=True),
)
