"""QEMU's monitor (QMP): what can be done to a machine from outside, and what it tells. Source: QEMU's docs/interop/qmp-spec.rst."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from tests.vm.json_lines import JsonLines


class Monitor:
    """Commands, one after another, and events, counted by name."""

    def __init__(self, lines: JsonLines) -> None:
        self._lines = lines
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()  # Any: JSON
        self._events: Counter[str] = Counter()
        self._told = asyncio.Condition()

    async def listens(self) -> None:
        """Take what QEMU says until it hangs up."""
        try:
            while True:
                words = await self._lines.hear()
                if "event" in words:
                    async with self._told:
                        self._events[words["event"]] += 1
                        self._told.notify_all()
                elif "QMP" not in words:
                    self._answers.put_nowait(words)
        except EOFError:
            self._answers.put_nowait({"error": "QEMU has hung up"})

    async def does(self, command: str) -> None:
        """Run a command without arguments."""
        await self._lines.say({"execute": command})
        answer = await self._answers.get()
        assert "return" in answer, f"{command}: {answer}"

    async def tells(self, event: str, times: int = 1) -> None:
        """Wait until it has told of `event` so often."""
        async with self._told:
            await self._told.wait_for(lambda: self._events[event] >= times)
