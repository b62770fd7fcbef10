"""Whether XIDs can be read: the driver's own reports about its cards stand in the kernel log, which not everybody may open.

Three lines of the unit grant it, and the error tells which of them is missing. A container needs the device and the capability. The doctor
opens the log as its own user: as root it may see more than a hardened unit does, so it says which user it is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from guest_service.config import kernel_log_path
from guest_service.doctor.cards import SIMULATED, cards_for_nvml
from guest_service.doctor.machine import Guest
from guest_service.kernel_log.reader import open_log
from guest_service.kernel_log.records import RECORD_LIMIT_BYTES
from guest_transport.doctor.checks import in_thread
from guest_transport.doctor.files import this_user
from guest_transport.doctor.findings import Finding, note, ok, wrong

# EPERM: the capability (kernel.dmesg_restrict) or the control group of devices. The others: systemd put something unreadable in its place.
_CAPABILITY = "CapabilityBoundingSet=… CAP_SYSLOG, and DeviceAllow=/dev/kmsg r"
_PLACE = "ProtectKernelLogs=no"
_OTHERWISE = 'in a container: --device /dev/kmsg --cap-add SYSLOG; or do without XIDs: host.kernel_log = "off"'


async def examine_kernel_log(guest: Guest) -> Sequence[Finding]:
    """The log that XIDs are read from."""
    path = kernel_log_path(guest.config)
    if path is None:
        simulated = guest.config.gpu.simulate is not None and guest.config.host.kernel_log != "off"
        return [note(SIMULATED if simulated else "host.kernel_log is off: XIDs are not known")]
    cards = await cards_for_nvml(guest)
    if isinstance(cards, str):
        return [note(cards)]
    return judge_kernel_log(path, await in_thread(lambda: try_log(path)), this_user())


def try_log(path: Path) -> OSError | None:
    """Why nothing can be read from `path`; a record of the kernel's log is read, and a FIFO only opened. Blocks."""
    try:
        fd, fifo = open_log(path)
    except OSError as error:
        return error
    try:
        if not fifo and not os.read(fd, RECORD_LIMIT_BYTES):
            return OSError(errno.ENODATA, "it is empty, so it is no kernel log")
    except OSError as error:
        # Nothing to read now, a record that was overwritten, and one that is too long: all three are a log.
        return None if error.errno in {errno.EAGAIN, errno.EPIPE, errno.EINVAL} else error
    finally:
        os.close(fd)
    return None


def judge_kernel_log(path: Path, error: OSError | None, user: str) -> list[Finding]:
    """Readable, or which line is missing."""
    if error is None:
        return [ok(f"{user} may read {path}")]
    line = _CAPABILITY if error.errno == errno.EPERM else _PLACE
    return [
        wrong(
            f"{user} cannot read {path}: {error.strerror}; XIDs are not known",
            f"the line of the unit that grants it is {line} (deploy/systemd/guest-service.service); {_OTHERWISE}",
        )
    ]
