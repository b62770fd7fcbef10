"""The collector's one line of JSON, and the file descriptor it goes to.

Descriptor 1 is moved away before NVML is loaded, because NVIDIA's stub library prints to it. The line is written by hand: `import json`
costs 4 ms (measured, Python 3.11) for a tree of integers, booleans and short texts. A float is refused: JSON has no NaN, and the contract
has no floats.
"""

import posix

STDOUT = 1
STDERR = 2
# Characters of a JSON string that stand for themselves, beside the printable ASCII ones.
QUOTED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def to_json(value: object) -> str:
    """`value` as JSON text in ASCII, without spaces; raises TypeError for what the contract does not have, floats included."""
    # The most frequent first: a sample is small objects of short texts and numbers.
    if isinstance(value, str):
        return f'"{value}"' if _plain(value) else f'"{"".join(map(_escaped, value))}"'
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "{" + ",".join([f"{to_json(key)}:{to_json(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_json, value)) + "]"
    raise TypeError(f"not in the contract: {type(value).__name__}")


def _plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and '"' not in text and "\\" not in text


def _escaped(character: str) -> str:
    if character in QUOTED:
        return QUOTED[character]
    code = ord(character)
    if 0x20 <= code < 0x7F:
        return character
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 | code >> 10:04x}\\u{0xDC00 | code & 0x3FF:04x}"


class Output:
    """Standard output, out of the driver's reach from the moment this is made: what others print there goes to stderr."""

    def __init__(self) -> None:
        # A standard stream that was closed before the start becomes /dev/null, or the next descriptor would take its number.
        self._was_closed = False
        while (nowhere := posix.open("/dev/null", posix.O_RDWR)) <= STDERR:
            self._was_closed = self._was_closed or nowhere == STDOUT
        posix.close(nowhere)
        self._fd = posix.dup(STDOUT)
        posix.dup2(STDERR, STDOUT)

    def write(self, line: str) -> int:
        """Write the line; returns the exit status: 0 also when the reader is gone, 1 with a complaint when it cannot be written."""
        left = f"{line}\n".encode("ascii")
        if self._was_closed:
            complain("stdout cannot be written: standard output is closed")
            return 1
        try:
            while left:
                left = left[self._write_some(left) :]
        except BrokenPipeError:
            return 0
        except OSError as error:
            complain(f"stdout cannot be written: {error.strerror}")
            return 1
        return 0

    def _write_some(self, data: bytes) -> int:
        try:
            return posix.write(self._fd, data)
        except BlockingIOError:  # a pipe that its owner made non-blocking, and that is full
            from select import POLLOUT, poll  # noqa: PLC0415 (rare)

            writable = poll()
            writable.register(self._fd, POLLOUT)
            writable.poll()
            return 0


def complain(line: str) -> None:
    """One printable line on stderr; lost when there is no stderr."""
    printable = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    try:
        posix.write(STDERR, f"guest-service gpu-info: {printable}\n".encode("utf-8", "replace"))
    except OSError:
        return
