"""Loads libnvidia-ml and runs nvmlInit_v2 in a thread, from the first moment of the process.

nvmlInit takes about 90 ms of a 95 ms sample (H200, driver in confidential-computing mode), so everything else happens beside it. It
uses `_ctypes` bare: `ctypes` itself costs 2.5 ms before the thread could start (measured, Python 3.11), and is imported meanwhile.
It refuses to search for a library: the loader's own order, or exactly the file that was named.
"""

import _ctypes
import _thread

DEFAULT_LIBRARY = "libnvidia-ml.so.1"
FUNCTION_NOT_FOUND_CODE = 13  # as in failure.py, which is imported only after the thread has started


class Library:
    """libnvidia-ml, being loaded and initialised since it was made; wait() before use, shutdown() after."""

    def __init__(self, name: str = DEFAULT_LIBRARY) -> None:
        self.name = name
        self.handle = 0
        self._loader_words = "the loading thread ended early"
        self._code: int | None = None
        self._finished = _thread.allocate_lock()
        self._finished.acquire()
        self._begun = _thread.allocate_lock()
        self._begun.acquire()
        try:
            _thread.start_new_thread(self._load, ())
        except RuntimeError:  # no thread to be had (a task limit): slower, but a sample
            self._load()
        # Let the thread get as far as the call: else it waits for the interpreter's lock, 5 ms a turn, behind the imports.
        self._begun.acquire()

    def _load(self) -> None:
        try:
            initialize = self._open()
            self._begun.release()
            if initialize:
                self._code = _ctypes.call_function(initialize, ())
        finally:
            self._finished.release()

    def _open(self) -> int:
        """Load the library; returns the address of nvmlInit_v2, 0 when there is none."""
        try:
            self.handle = _ctypes.dlopen(self.name)
            return _ctypes.dlsym(self.handle, "nvmlInit_v2")
        except OSError as error:
            self._loader_words = str(error)
            return 0

    def wait(self) -> None:
        """Return when NVML is ready; raises SampleFailure with the loader's or NVML's own words."""
        from guest_service.collector.failure import NvmlFailure, SampleFailure, cannot_start  # noqa: PLC0415 (while NVML starts)

        with self._finished:
            pass
        if self._code is None:
            raise SampleFailure(
                f"{self.name} cannot be loaded: {self._loader_words}; install the user-space part of the NVIDIA driver"
            )
        if self._code != 0:
            raise SampleFailure(cannot_start(NvmlFailure(self._code, self.words(self._code))))

    def words(self, code: int) -> str:
        """What this library says for a code that is newer than this program; empty when it says nothing."""
        import ctypes  # noqa: PLC0415 (after the thread has started)

        try:
            say = ctypes.CDLL(self.name, handle=self.handle).nvmlErrorString
        except AttributeError:
            return ""
        say.restype = ctypes.c_char_p
        said = say(ctypes.c_int(code))
        return said.decode("utf-8", "replace") if isinstance(said, bytes) else ""

    def shutdown(self) -> int:
        """End NVML when its start succeeded, once; returns NVML's code (0 also when there was nothing to end)."""
        with self._finished:
            started, self._code = self._code == 0, None
        if not started:
            return 0
        try:
            return int(_ctypes.call_function(_ctypes.dlsym(self.handle, "nvmlShutdown"), ()))
        except OSError:
            return FUNCTION_NOT_FOUND_CODE
