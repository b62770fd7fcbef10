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
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"' if _plain(value) else f'"{"".join(map(_escaped, value))}"'
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, list):
        return f"[{','.join(map(to_json, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{to_json(key)}:{to_json(item)}' for key, item in value.items())}}}"
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
        try:
            self._fd: int | None = posix.dup(STDOUT)
        except OSError:  # started with stdout closed: there is nobody to tell
            self._fd = None
        try:
            posix.dup2(STDERR, STDOUT)
        except OSError:  # started with stderr closed
            nowhere = posix.open("/dev/null", posix.O_WRONLY)
            posix.dup2(nowhere, STDOUT)

    def write(self, line: str) -> int:
        """Write the line; returns the exit status: 0 also when the reader is gone, 1 with a complaint when it cannot be written."""
        if self._fd is None:
            return 0
        left = f"{line}\n".encode("ascii")
        try:
            while left:
                left = left[posix.write(self._fd, left) :]
        except BrokenPipeError:
            return 0
        except OSError as error:
            complain(f"stdout cannot be written: {error.strerror}")
            return 1
        return 0


def complain(line: str) -> None:
    """One line on stderr; lost when there is no stderr."""
    try:
        posix.write(STDERR, f"guest-service gpu-info: {line}\n".encode("utf-8", "replace"))
    except OSError:
        return
