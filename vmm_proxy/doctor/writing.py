"""What the proxy must be able to write, judged without opening it: the audit log and the file of registered guests."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from guest_transport.doctor.checks import in_thread
from guest_transport.doctor.files import FileFacts, may, read_facts, this_user
from guest_transport.doctor.findings import Finding, note, ok, wrong
from vmm_proxy.doctor.machine import UNIT_USER, Host


@dataclass(frozen=True, slots=True)
class WritableReading:
    """A file that is to be written, as it is now, and whether this user may write it, and make files in its folder."""

    path: Path
    facts: FileFacts | OSError
    may_write: bool
    folder: FileFacts | OSError
    may_make: bool


def read_writable(path: Path) -> WritableReading:
    """Whether `path` can be written; nothing is opened. Blocks."""
    folder = path.parent
    return WritableReading(path, read_facts(path), may(path, os.W_OK), read_facts(folder), may(folder, os.W_OK | os.X_OK))


async def examine_audit(host: Host) -> Sequence[Finding]:
    """The audit log."""
    if host.config.audit.file is None:
        return [note("no audit.file: lines about Shutdown and the directory go to the proxy's log")]
    path = Path(host.config.audit.file)
    return [judge_audit(await in_thread(lambda: read_writable(path)))]


def judge_audit(reading: WritableReading) -> Finding:
    """A line must be on the disk before a Shutdown is made."""
    where = f"audit.file {reading.path}"
    refuses = f"{this_user()} may not write it: every Shutdown is refused until it can be written"
    if isinstance(reading.facts, FileFacts):
        if not reading.facts.is_regular:
            return wrong(f"{where}: is no regular file", "move it away, or name another")
        if not reading.may_write:
            return wrong(f"{where}: {refuses} ({reading.facts.owners})", f"chown {UNIT_USER} {reading.path}")
        return ok(f"{where}: {reading.facts.owners}")
    if isinstance(reading.folder, OSError):
        return wrong(f"{where}: {reading.folder.strerror}: {reading.path.parent}", "make the folder, owned by the proxy's user")
    if not reading.may_make:
        return wrong(
            f"{where}: {refuses} ({reading.path.parent} is {reading.folder.owners})", f"chown {UNIT_USER} {reading.path.parent}"
        )
    return ok(f"{where}: not there yet, and can be made")


async def examine_state(host: Host) -> Sequence[Finding]:
    """The file of registered guests."""
    if host.config.directory.registered_file is None:
        return [note("no directory.registered_file: no VMM can register guests")]
    path = Path(host.config.directory.registered_file)
    return [judge_state(await in_thread(lambda: read_writable(path)))]


def judge_state(reading: WritableReading) -> Finding:
    """It is replaced as a whole, so it is the folder that must be writable; what it holds is judged by `directory`."""
    where = f"directory.registered_file {reading.path}"
    if isinstance(reading.folder, OSError):
        return wrong(f"{where}: {reading.folder.strerror}: {reading.path.parent}", "make the folder, owned by the proxy's user")
    if not reading.may_make:
        words = f"{where}: {this_user()} may not make files in {reading.path.parent} ({reading.folder.owners})"
        return wrong(words, f"chown {UNIT_USER} {reading.path.parent}; until then nothing can be registered")
    if isinstance(reading.facts, FileFacts) and reading.facts.mode & stat.S_IWOTH:
        return wrong(f"{where}: everybody may write to it: {reading.facts.owners}", f"chmod o-w {reading.path}")
    return ok(f"{where}: its folder can be written by {this_user()}")
