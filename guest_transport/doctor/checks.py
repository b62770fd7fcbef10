"""Runs checks side by side, each within its own bound; whatever one of them does, the report is complete.

A check that hangs, or that fails in a way nobody thought of, is a line of that check. Reads that can hang run in a daemon thread, which
is left behind when its time is over. Rejected: the loop's default executor (asyncio.run joins its threads, so one hung read would hold the
whole report), and one check after the other (ten bounds in a row are minutes).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from guest_transport.doctor.findings import Finding, wrong

MachineT = TypeVar("MachineT")
T = TypeVar("T")

# A container engine with a thousand containers takes one second, a name server that is gone five; a person waits ten and no more.
CHECK_SECONDS = 10.0
# What a cancelled check may still need to end its child process (Sampler.close takes 1.5 s at most).
ENDING_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Check(Generic[MachineT]):
    """One check of a machine; `name` is what scripts know it by, `looks_at` what docs/doctor.md says of it.

    `without_config`: whether it makes sense where the configuration was refused. `bound_seconds`: what it may take on a machine.
    """

    name: str
    looks_at: str
    examine: Callable[[MachineT], Awaitable[Sequence[Finding]]]
    without_config: bool = False
    bound_seconds: Callable[[MachineT], float] = lambda _machine: CHECK_SECONDS


@dataclass(frozen=True, slots=True)
class Examined:
    """What one check found. `hung`: it did not end, and may have left a thread behind that nobody can end."""

    check: str
    findings: tuple[Finding, ...]
    hung: bool = False


async def run_checks(checks: Sequence[Check[MachineT]], machine: MachineT) -> list[Examined]:
    """What each of `checks` found, in their order; takes as long as the slowest of their bounds and ENDING_SECONDS."""
    return list(await asyncio.gather(*(_run(check, machine) for check in checks)))


async def _run(check: Check[MachineT], machine: MachineT) -> Examined:
    bound = check.bound_seconds(machine)
    task = asyncio.ensure_future(check.examine(machine))
    await asyncio.wait({task}, timeout=bound)
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=ENDING_SECONDS)
        hung = wrong(f"no answer within {bound:g} s", "see what this check looks at in docs/doctor.md, and whether that hangs")
        return Examined(check.name, (hung,), hung=True)
    error = task.exception()
    if isinstance(error, TimeoutError):
        # A bound of its own, below that of the check.
        return Examined(check.name, (wrong(str(error) or "no answer in time", "see whether what it reads hangs"),), hung=True)
    if error is not None:
        # The top of a check: no fault of ours in one of them may cost the others.
        fault = wrong(f"the doctor itself failed: {type(error).__name__}: {error}", "report this line as a bug")
        return Examined(check.name, (fault,))
    return Examined(check.name, tuple(task.result()))


async def in_thread(read: Callable[[], T]) -> T:
    """What `read` returns or raises, from a daemon thread that nobody waits for once this is cancelled."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type] # without an error it is a T

    def run() -> None:
        result, error = None, None
        try:
            result = read()
        except Exception as caught:  # noqa: BLE001 -- the thread's top: raised again in whoever awaits
            error = caught
        try:
            loop.call_soon_threadsafe(finish, result, error)
        except RuntimeError:
            return  # The loop was closed meanwhile; nobody waits.

    threading.Thread(target=run, name="doctor", daemon=True).start()
    return await future
