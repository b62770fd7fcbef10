"""Whom this judges as: root may open what the proxy's own user may not, so a report of root says little about permissions."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence

from guest_transport.doctor.checks import in_thread
from guest_transport.doctor.files import user_name
from guest_transport.doctor.findings import Finding, note, ok
from vmm_proxy.doctor.machine import UNIT, UNIT_USER, Host


async def examine_user(_host: Host) -> Sequence[Finding]:
    """Whether the answers are those that the proxy itself would get."""
    return [judge_user(os.geteuid(), await in_thread(_unit_uid))]


def _unit_uid() -> int | None:
    try:
        return pwd.getpwnam(UNIT_USER).pw_uid
    except KeyError:
        return None


def judge_user(own_uid: int, unit_uid: int | None) -> Finding:
    """`unit_uid`: of the user that the unit runs as; None when there is no such user."""
    name = user_name(own_uid)
    if unit_uid is None or own_uid == unit_uid:
        return ok(f"judged as {name}")
    return note(
        f"judged as {name}, and the unit runs as {UNIT_USER}",
        f"runuser -u {UNIT_USER} -- {UNIT} doctor tells what the proxy may open",
    )
