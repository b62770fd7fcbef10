"""Ties the collector's life to its agent's: an agent that is killed leaves no process behind that hangs in the driver.

The kernel does it (prctl(2), PR_SET_PDEATHSIG), since an agent that gets SIGKILL can do nothing any more. Only for a collector that an
agent started: one that a person runs belongs to the shell. Rejected: a pipe that the collector watches (it may be stuck in a call).
"""

import _ctypes
import posix

PR_SET_PDEATHSIG = 1
SIGKILL = 9


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when the thread that started it ends; `parent` is the pid of its process, 0 for any.

    Where the parent is gone already, nobody waits for a sample, and this process ends here.
    """
    try:
        program = _ctypes.dlopen(None)  # type: ignore[arg-type] # None: this program and its libc (dlopen(3)); not in the stubs
        _ctypes.call_function(_ctypes.dlsym(program, "prctl"), (PR_SET_PDEATHSIG, SIGKILL))
    except OSError:  # a libc without prctl: nothing is tied, and a sample is still a sample
        pass
    if parent not in (0, posix.getppid()):
        posix._exit(0)
