"""A Python that other users of this machine may run, for tests that connect as one.

The interpreter of the tests may lie in somebody's home folder (pyenv's does), where no other user gets at it or at its library. The
programs of these tests need nothing but the standard library, so any Python of the machine will do. It is tried and started in one way, by
setpriv: user= of subprocess forks this process, which may have gRPC in it, and asks for other rights to the file than setpriv does.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Sequence

import pytest

NOBODY = 65534


def as_user(uid: int, gid: int, groups: Sequence[int] = ()) -> tuple[str, ...]:
    """What to put in front of a command, so that it runs as that user."""
    others = f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"
    return ("setpriv", f"--reuid={uid}", f"--regid={gid}", others)


def python_of_anybody() -> str:
    """Its path; skips the test where there is none."""
    found = _found()
    if found is None:
        pytest.skip("missing: a Python that other users may run, such as Debian's python3")
    return found


@functools.cache
def _found() -> str | None:
    for candidate in (getattr(sys, "_base_executable", sys.executable), shutil.which("python3", path="/usr/bin:/bin")):
        command = [*as_user(NOBODY, NOBODY), str(candidate), "-I", "-c", "import socket"]
        if candidate and subprocess.run(command, check=False, capture_output=True, cwd="/", timeout=60).returncode == 0:
            return candidate
    return None
