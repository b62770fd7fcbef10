"""A real guest agent as a process of its own, with what a test needs to ask, signal and end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

GUEST_SERVICE = [sys.executable, "-m", "guest_service"]


class Agent:
    """A running `guest-service serve`; its log lines as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._news = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def log_line(self, words: str, within_seconds: float = 20) -> str:
        """The first log line with `words`, waited for."""

        def found() -> str | None:
            return next((line for line in self.lines if words in line), None)

        with self._news:
            self._news.wait_for(lambda: found() is not None or not self.reader.is_alive(), within_seconds)
        line = found()
        assert line is not None, f"no line with {words!r} in {self.lines}"
        return line

    def http(self) -> str:
        """Where the pages are, HOST:PORT."""
        return self.log_line("listening for HTTP on").rpartition(" ")[2]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it and wait; its exit status."""
        self.process.send_signal(number)
        status = self.process.wait(20)
        self.reader.join(20)
        return status

    def children(self) -> list[int]:
        """Process ids of its children."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in text.split()]


@contextmanager
def running_agent(
    *arguments: str, ready: str = "listening on", env: dict[str, str] | None = None, prefix: Sequence[str] = ()
) -> Iterator[Agent]:
    """`guest-service serve` with `arguments`, once its log has `ready`; killed at the end if it still runs. `prefix`: what starts it."""
    process = subprocess.Popen(
        [*prefix, *GUEST_SERVICE, "serve", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )
    agent = Agent(process)
    try:
        agent.log_line(ready)
        yield agent
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        agent.reader.join(20)
        process.stderr.close()


def refused(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A `guest-service` that is expected to end by itself."""
    return subprocess.run([*GUEST_SERVICE, *arguments], capture_output=True, text=True, check=False, timeout=30)
