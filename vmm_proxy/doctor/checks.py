"""The checks of `vmm-proxy doctor`, in the order of the report. docs/doctor.md has the same list; a test holds the two together."""

from __future__ import annotations

from collections.abc import Sequence

from guest_transport.doctor.checks import Check, in_thread
from guest_transport.doctor.clock import examine_clock
from guest_transport.doctor.findings import Finding, ok, wrong
from guest_transport.doctor.tasks import judge_task_limits, read_task_limits
from vmm_proxy.doctor import access, directory, guests, listeners, reach, tls, user, writing
from vmm_proxy.doctor.machine import READ_SECONDS, UNIT, Host, refusal

# A thousand guests take 1 s to be made ready and to answer (measured, two cores); ten times as many fit.
_ASKING_SECONDS = guests.GUEST_SECONDS + 14.0


async def examine_config(host: Host) -> Sequence[Finding]:
    """Whether serve would take the configuration."""
    if refused := await refusal(host):
        return [wrong(refused, "correct it; vmm-proxy check-config tries it again")]
    where = host.file or "no file, the defaults hold"
    listen = ", ".join((*host.config.grpc.listen, *host.config.grpc.read_only_listen))
    return [ok(f"{where}: gRPC on {listen}, pages: {host.config.http.listen}")]


async def examine_tasks(_host: Host) -> Sequence[Finding]:
    """Whether the proxy can still start what it must."""
    return judge_task_limits(await in_thread(lambda: read_task_limits(UNIT)))


def _after_reading(_host: Host) -> float:
    """What a check may take that needs to know the guests first."""
    return READ_SECONDS + 4.0


CHECKS: tuple[Check[Host], ...] = (
    Check("config", "the configuration is one that serve takes", examine_config, without_config=True),
    Check("user", "the user that this is judged as is the one that the unit runs as", user.examine_user, without_config=True),
    Check(
        "directory",
        "each entry of a guest that is refused, and sockets under two names",
        directory.examine_directory,
        bound_seconds=_after_reading,
    ),
    Check(
        "libvirt",
        "libvirt answers, and each of its domains that is refused",
        directory.examine_libvirt,
        bound_seconds=_after_reading,
    ),
    Check(
        "kubevirt",
        "the API server answers and lets this node's instances be watched, and each of them that is refused",
        directory.examine_kubevirt,
        bound_seconds=_after_reading,
    ),
    Check(
        "grpc",
        "each address of grpc.listen and grpc.read_only_listen: mode, who holds it, and whether a proxy answers",
        listeners.examine_grpc,
    ),
    Check("http", "the pages: who holds their address, and whether they answer and are ready", listeners.examine_http),
    Check("vsock", "the kernel has what guests at vsock: addresses need", reach.examine_vsock, bound_seconds=_after_reading),
    Check(
        "sockets",
        "the socket files of guests at hvsock: and unix: addresses are there and open to this user",
        reach.examine_sockets,
        bound_seconds=_after_reading,
    ),
    Check(
        "guests",
        "each running guest is reached, who it says it is, whether that is its pin, and what speaks against its cards",
        guests.examine_guests,
        bound_seconds=lambda _host: READ_SECONDS + _ASKING_SECONDS,
    ),
    Check(
        "tls",
        "certificates and keys fit, their modes, their end, and the names in them",
        tls.examine_tls,
        bound_seconds=_after_reading,
    ),
    Check("access", "tokens and grants read, name who exists, and can have an effect", access.examine_access),
    Check("audit", "the audit log can be written", writing.examine_audit),
    Check("state", "the file of registered guests can be replaced", writing.examine_state),
    Check("tasks", "how many processes and threads may still be started", examine_tasks, without_config=True),
    Check("clock", "the wall clock is sane, and somebody keeps it synchronised", examine_clock, without_config=True),
)
