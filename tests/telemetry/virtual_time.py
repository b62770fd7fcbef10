"""An event loop whose time moves only when nothing else can happen, and then straight to the next timer.

Hours of scrapes pass in milliseconds, and a test that waits for a minute waits for exactly a minute.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A real selector loop with a clock of its own; `suspend` makes its boottime run on while its timers stand still."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._asleep = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """What timers go by, as CLOCK_MONOTONIC."""
        return self._now

    def boottime(self) -> float:
        """What ages go by, as CLOCK_BOOTTIME."""
        return self._now + self._asleep

    def jump(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds

    def suspend(self, seconds: float) -> None:
        """Let the machine sleep."""
        self._asleep += seconds

    def wait(self, seconds: float) -> None:
        """Run the loop for so long."""
        # Not a real second: the loop's clock jumps.
        self.run_until_complete(asyncio.sleep(seconds))

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Join the threads without a bound: they are real, and 300 s of this clock, which Python 3.13 gives them, are over at once."""
        await super().shutdown_default_executor()


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # With no timer set there is nothing to jump to: a thread is at work, and its end is a real event.
        events: list[tuple[selectors.SelectorKey, int]] = super().select(None if timeout is None else 0)
        if not events and timeout:
            self._loop.jump(timeout)
        return events


def in_virtual_time(test: Callable[P, Awaitable[T]]) -> Callable[P, T]:
    """Run an async test in a VirtualLoop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        async def whole() -> T:
            return await test(*args, **kwargs)

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(whole())

    return run


async def passes(seconds: float) -> None:
    """Let so much of the running loop's virtual time pass; refuses a loop whose seconds are real."""
    virtual_loop()
    # Not a real second: the loop's clock jumps.
    await asyncio.sleep(seconds)


def virtual_loop() -> VirtualLoop:
    """The running loop of a test in virtual time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop
