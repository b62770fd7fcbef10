"""How NVML is called: buffers that are filled first, failures as exceptions, older functions where newer ones are not there.

The binding gives structures and constants; the calls are made here with buffers that are filled with 0xFF first, because a driver may
return success and write nothing, and the binding's zeroed buffers would turn that into a measured zero. Its text decoding is strict
(a broken byte would lose the card), its nvmlSystemGetConfComputeSettings returns a raw code: both are avoided the same way.
"""

from __future__ import annotations

import ctypes
import struct

from guest_service.collector.failure import FUNCTION_NOT_FOUND, NOTHING_WRITTEN, UNWRITTEN, NvmlFailure, bounded
from guest_service.collector.loaded_library import Library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeVar

    T = TypeVar("T")
    # What NVML says of one field: a code, the type of the value, and its bytes.
    FieldValue = tuple[int, int, bytes]

UNWRITTEN_64 = 0xFFFFFFFFFFFFFFFF
UNWRITTEN_BYTE = 0xFF

# nvmlFieldValue_t (nvml.h): fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value. By hand, because an attribute of the
# binding's structures is a function of Python: a card's links took 1 ms more.
_FIELD = struct.Struct("IIqqII8s")
_ASKED = struct.Struct("II")
_NOT_ASKED = bytes([UNWRITTEN_BYTE]) * (_FIELD.size - _ASKED.size)
# nvmlValueType_t, and what the value is then.
_VALUES = {kind: struct.Struct(value) for kind, value in enumerate("dILQqiH")}

Handle = ctypes.c_void_p


def text_of(buffer: bytes) -> str:
    """A C string, decoded with replacement."""
    return buffer.split(b"\0", 1)[0].decode("utf-8", "replace")


class NvmlCalls:
    """NVML of one loaded library; every query raises NvmlFailure with the code. `calls` is told of each function before its call."""

    def __init__(
        self, library: Library, binding: Any, calls: Callable[[str], object] = lambda _: None
    ) -> None:  # Any: the module pynvml, see binding.py
        self._library = library
        self._binding = binding
        self._about_to = calls
        # What _once was answered: Any is the answer, or the failure.
        self._answers: dict[tuple[str, int | None], Any] = {}
        self._calls: Any = None  # Any: a ctypes library resolves its functions by attribute

    def start(self) -> None:
        """Go on when NVML has started; raises SampleFailure."""
        self._library.ready()
        self._calls = ctypes.CDLL(self._library.name, handle=self._library.handle)

    def _call(self, function: str, *arguments: object) -> None:
        try:
            call = getattr(self._calls, function)
        except AttributeError:
            raise NvmlFailure(FUNCTION_NOT_FOUND) from None
        self._about_to(function)
        if (code := call(*arguments)) != 0:
            raise NvmlFailure(code, self._library.words(code))

    def _once(self, question: str, device: Handle, ask: Callable[[], T]) -> T:
        """What `ask` answered about this card before, or answers now; a failure stands as well. This object lives for one sample."""
        key = question, device.value
        if key not in self._answers:
            try:
                self._answers[key] = ask()
            except NvmlFailure as failure:
                self._answers[key] = failure
        answer = self._answers[key]
        if isinstance(answer, NvmlFailure):
            raise answer
        found: T = answer
        return found

    def _blank(self, structure: str, version: str = "") -> Any:  # Any: a structure of the binding
        """A structure whose every byte is 0xFF but for its version; one that this binding lacks is a missing function."""
        kind = getattr(self._binding, structure, None)
        if kind is None or (version and not hasattr(self._binding, version)):
            raise NvmlFailure(FUNCTION_NOT_FOUND)
        blank = kind()
        ctypes.memset(ctypes.byref(blank), 0xFF, ctypes.sizeof(blank))
        if version:
            blank.version = getattr(self._binding, version)
        return blank

    def _number(self, function: str, *arguments: object) -> int:
        value = ctypes.c_uint(UNWRITTEN)
        self._call(function, *arguments, ctypes.byref(value))
        return value.value

    def _wide_number(self, function: str, *arguments: object) -> int:
        value = ctypes.c_ulonglong(UNWRITTEN_64)
        self._call(function, *arguments, ctypes.byref(value))
        return value.value

    def _numbers(self, function: str, device: Handle, count: int) -> list[int]:
        """What a function writes into `count` numbers of 32 bits."""
        values = [ctypes.c_uint(UNWRITTEN) for _ in range(count)]
        self._call(function, device, *map(ctypes.byref, values))
        return [value.value for value in values]

    def _text(self, function: str, size: int, *before: object) -> str:
        """What a function writes into a buffer of `size` bytes, on one line; `before` is what it is given first."""
        buffer = ctypes.create_string_buffer(size)
        self._call(function, *before, buffer, ctypes.c_uint(size))
        if not (text := bounded(text_of(buffer.raw))):
            raise NvmlFailure(NOTHING_WRITTEN)
        return text

    def _call_older(self, function: str, newer: NvmlFailure, *arguments: object) -> None:
        """Call an older function after the newer one failed; when it is not there either, the newer one's failure stands."""
        try:
            self._call(function, *arguments)
        except NvmlFailure as older:
            raise (newer if older.code == FUNCTION_NOT_FOUND else older) from None

    def _field_values(self, device: Handle, fields: Sequence[tuple[int, int]]) -> list[FieldValue]:
        """The fields with these ids and scopes; ids over 250 were renumbered, and mean other things to other drivers: never asked."""
        asked = b"".join([_ASKED.pack(field, scope) + _NOT_ASKED for field, scope in fields])
        values = ctypes.create_string_buffer(asked, len(asked))
        self._call("nvmlDeviceGetFieldValues", device, ctypes.c_int(len(fields)), values)
        return [(code, kind, value) for _, _, _, _, kind, code, value in _FIELD.iter_unpack(values.raw)]

    def _field_number(self, field: FieldValue) -> int:
        """The whole number in a field, by the type that it says to have; what is no number of a value is not written."""
        code, kind, raw = field
        if code != 0:
            raise NvmlFailure(code, self._library.words(code))
        if kind not in _VALUES:
            raise NvmlFailure(NOTHING_WRITTEN)
        [value] = _VALUES[kind].unpack_from(raw)
        # Infinity and "not a number" are not 0 less themselves.
        if value - value != 0:
            raise NvmlFailure(NOTHING_WRITTEN)
        number: int = round(value)
        return number
