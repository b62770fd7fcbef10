"""The terminal as a screen of its own: frames, keys, size; given back as it was, whatever the end is.

A frame is one write, so that nothing flickers and a slow line shows whole frames. Rejected: rich's Live, which redraws from a thread of its
own and knows neither keys nor a stopped process.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from enum import Enum

from rich.console import Console
from rich.screen import Screen as WholeScreen
from rich.text import Text

from guest_client.guestctl.output import stdout
from guest_client.guestctl.output.stdout import Size

# xterm's names (ECMA-48, "private modes"): the other screen without a cursor, and back.
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"


class Key(Enum):
    """Keys that are no characters."""

    UP = "up"
    DOWN = "down"
    PAGE_UP = "page up"
    PAGE_DOWN = "page down"
    HOME = "home"
    END = "end"


# What terminals send for them, in normal and application mode.
_SEQUENCES = {
    "\x1b[A": Key.UP, "\x1bOA": Key.UP, "\x1b[B": Key.DOWN, "\x1bOB": Key.DOWN, "\x1b[5~": Key.PAGE_UP, "\x1b[6~": Key.PAGE_DOWN,
    "\x1b[H": Key.HOME, "\x1bOH": Key.HOME, "\x1b[1~": Key.HOME, "\x1b[F": Key.END, "\x1bOF": Key.END, "\x1b[4~": Key.END,
}  # fmt: skip
_TYPED = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|[^\x1b]", re.DOTALL)

# Told of each key, and of a change of the size (None).
OnKey = Callable[[Key | str | None], None]


def usable() -> bool:
    """Whether standard output is a terminal that can show a screen."""
    return stdout.is_terminal() and os.environ.get("TERM", "dumb") not in {"", "dumb"}


def typed(data: bytes) -> list[Key | str]:
    """The keys in what a terminal sent; sequences that mean nothing here are left out."""
    found = (match[0] for match in _TYPED.finditer(data.decode("utf-8", "replace")))
    return [_SEQUENCES.get(text, text) for text in found if len(text) == 1 or text in _SEQUENCES]


class Screen:
    """The whole terminal, between __enter__ and __exit__, in a running event loop."""

    def __init__(self, on_key: OnKey) -> None:
        self._on_key = on_key
        self._loop = asyncio.get_running_loop()
        self._keyboard = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: list[object] | None = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Take the terminal, and give it back."""
        handled = {signal.SIGWINCH: self._resized, signal.SIGTSTP: self._pause}
        for number, handler in handled.items():
            self._loop.add_signal_handler(number, handler)
        if self._keyboard is not None:
            self._loop.add_reader(self._keyboard, self._read)
        try:
            self._take()
            yield
        finally:
            if self._keyboard is not None:
                self._loop.remove_reader(self._keyboard)
            for number in handled:
                self._loop.remove_signal_handler(number)
            self._give_back()

    def draw(self, lines: Sequence[Text], size: Size) -> None:
        """Show `lines` and nothing else."""
        text = io.StringIO()
        console = Console(
            file=text, force_terminal=True, width=size.columns, height=size.lines, highlight=False, emoji=False, markup=False
        )
        console.print(WholeScreen(*lines), end="")
        stdout.write(_HOME + text.getvalue())

    def _take(self) -> None:
        if self._keyboard is not None:
            self._before = termios.tcgetattr(self._keyboard)
            # Keys at once and unseen; Ctrl-C and Ctrl-Z stay signals.
            tty.setcbreak(self._keyboard, termios.TCSANOW)
        stdout.write(_ENTER)

    def _give_back(self) -> None:
        if self._keyboard is not None and self._before is not None:
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._keyboard, termios.TCSANOW, self._before)  # type: ignore[arg-type] # as tcgetattr gave it
        stdout.write(_LEAVE)

    def _read(self) -> None:
        if self._keyboard is None:
            return
        try:
            data = os.read(self._keyboard, 1024)
        except OSError:
            data = b""
        if not data:  # the terminal is gone; its hang-up ends us
            self._loop.remove_reader(self._keyboard)
        for key in typed(data):
            self._on_key(key)

    def _resized(self) -> None:
        self._on_key(None)

    def _pause(self) -> None:
        """Ctrl-Z: the shell gets its own screen, and we ours when it lets us go on."""
        self._give_back()
        self._loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)
        self._loop.add_signal_handler(signal.SIGTSTP, self._pause)
        self._take()
        self._on_key(None)
