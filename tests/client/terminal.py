"""`guestctl` on a terminal of a test's own: what it shows as whole frames, keys, size, and how the terminal is left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator

from rich.cells import cell_len

COMMAND = [sys.executable, "-m", "guest_client.guestctl"]
# Then it is killed: it only has to give its terminal back, and a measured one to write what it covered.
END_SECONDS = 10
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
_HOME = "\x1b[H"
# Colours and attributes.
_LOOKS = re.compile(r"\x1b\[[0-9;]*m")


def environment(**more: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TERM"} and not name.startswith("GUESTCTL_")
    }
    return kept | {"TERM": "xterm-256color"} | more


class Terminal:
    """A pseudo-terminal with one command on it."""

    def __init__(self, columns: int, lines: int) -> None:
        self._controller, slave = pty.openpty()
        self.slave: int | None = slave
        self.before = self.settings()
        self._text = ""
        self._news = threading.Condition()
        self.process: subprocess.Popen[bytes]
        self._size(columns, lines)
        self._reader = threading.Thread(target=self._read, daemon=True)

    def start(self, *arguments: str, **more: str) -> None:
        # A process group of its own in the session of the test: a parent outside the group is what lets it be stopped.
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env=environment(**more),
            process_group=0,
        )
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._controller, 65536)
            except OSError:
                data = b""
            with self._news:
                self._text += data.decode(errors="replace")
                self._news.notify_all()
            if not data:
                return

    def settings(self) -> list[object]:
        """How it is set now."""
        assert self.slave is not None
        return termios.tcgetattr(self.slave)

    def _size(self, columns: int, lines: int) -> None:
        assert self.slave is not None
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int) -> None:
        self._size(columns, lines)
        # The kernel tells the foreground group of a controlling terminal, which this is not.
        self.process.send_signal(signal.SIGWINCH)

    def press(self, keys: str) -> None:
        os.write(self._controller, keys.encode())

    @property
    def text(self) -> str:
        with self._news:
            return self._text

    def frame(self) -> list[str]:
        """The lines of the last whole frame, without colours."""
        frames = _LOOKS.sub("", self.text).replace(LEAVE, _HOME).split(_HOME)
        whole = frames[-2] if len(frames) > 1 else ""
        return [line.rstrip() for line in whole.split("\r\n")]

    def until(self, seen: Callable[[list[str]], bool], what: str, within_seconds: float = 30) -> list[str]:
        """The first frame of which `seen` is true."""
        found: list[str] = []

        def is_there() -> bool:
            nonlocal found
            found = self.frame()
            return seen(found)

        with self._news:
            assert self._news.wait_for(is_there, within_seconds), f"never: {what}; last frame: {found}; {self._text[-300:]!r}"
        return found

    def written(self, words: str, within_seconds: float = 30) -> str:
        """All that was written, once `words` are part of it."""
        with self._news:
            assert self._news.wait_for(lambda: words in self._text, within_seconds), f"never {words!r}: {self._text!r}"
            return self._text

    def end(self) -> int:
        """Wait for its end; its exit status."""
        return self.process.wait(30)

    def everything(self) -> str:
        """All that it wrote in its life, which is over; the terminal is closed with it."""
        self.end()
        self._hang_up()
        return self.text

    def _hang_up(self) -> None:
        if self.slave is not None:
            os.close(self.slave)
            self.slave = None
        self._reader.join(10)

    def close(self) -> None:
        if self.process.poll() is None:
            # Asked first, as by a shell that goes: one that is killed cannot tell what it covered.
            self.process.terminate()
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._hang_up()
        os.close(self._controller)


@contextlib.contextmanager
def on_terminal(*arguments: str, columns: int = 130, lines: int = 30, **more: str) -> Iterator[Terminal]:
    """`guestctl` with `arguments` on a terminal; killed at the end if it still runs."""
    terminal = Terminal(columns, lines)
    terminal.start(*arguments, **more)
    try:
        yield terminal
    finally:
        terminal.close()


def without_looks(text: str) -> str:
    """`text` without colours and attributes."""
    return _LOOKS.sub("", text)


def widest(lines: list[str]) -> int:
    return max(cell_len(line) for line in lines)
