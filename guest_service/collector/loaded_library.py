"""Loads libnvidia-ml and runs nvmlInit_v2, with nothing imported for it.

nvmlInit takes about 90 ms of a 95 ms sample (H200, driver in confidential-computing mode), so it begins before everything else and releases
the interpreter's lock while it runs. It uses `_ctypes` bare, because `ctypes` itself costs 2.5 ms (measured, Python 3.11) and can be
imported meanwhile. It refuses to search for a library: the loader's own order, or exactly the file that was named.
"""

import _ctypes

DEFAULT_LIBRARY = "libnvidia-ml.so.1"
FUNCTION_NOT_FOUND_CODE = 13  # as in failure.py, which is imported while NVML starts


class Library:
    """libnvidia-ml: loaded when it is made, then initialize(), ready(), and shutdown() in the end."""

    def __init__(self, name: str = DEFAULT_LIBRARY) -> None:
        self.name = name
        self.handle = 0
        self._initialize = 0
        self._loader_words = ""
        self._code: int | None = None
        try:
            self.handle = _ctypes.dlopen(name)
            self._initialize = _ctypes.dlsym(self.handle, "nvmlInit_v2")
        except OSError as error:
            self._loader_words = str(error)

    def initialize(self) -> None:
        """Run nvmlInit_v2, which may take as long as it likes; other threads run meanwhile. ready() tells how it went."""
        if self._initialize:
            self._code = _ctypes.call_function(self._initialize, ())

    def ready(self) -> None:
        """Return when NVML can be asked; raises SampleFailure with the loader's or NVML's own words."""
        from guest_service.collector.failure import NvmlFailure, SampleFailure, cannot_start  # noqa: PLC0415 (imported by now)

        if self._code is None:
            raise SampleFailure(
                f"{self.name} cannot be loaded: {self._loader_words}; install the user-space part of the NVIDIA driver"
            )
        if self._code != 0:
            raise SampleFailure(cannot_start(NvmlFailure(self._code, self.words(self._code))))

    def words(self, code: int) -> str:
        """What this library says for a code that is newer than this program; empty when it says nothing."""
        import ctypes  # noqa: PLC0415 (imported by now)

        try:
            say = ctypes.CDLL(self.name, handle=self.handle).nvmlErrorString
        except AttributeError:
            return ""
        say.restype = ctypes.c_char_p
        said = say(ctypes.c_int(code))
        return said.decode("utf-8", "replace") if isinstance(said, bytes) else ""

    def shutdown(self) -> int:
        """End NVML when its start succeeded, once; returns NVML's code (0 also when there was nothing to end)."""
        started, self._code = self._code == 0, None
        if not started:
            return 0
        try:
            return int(_ctypes.call_function(_ctypes.dlsym(self.handle, "nvmlShutdown"), ()))
        except OSError:
            return FUNCTION_NOT_FOUND_CODE
