"""A Python that other users of this machine may run, for tests that connect as one.

The interpreter of the tests may lie in somebody's home folder (pyenv's does), where no other user gets at it or at its library. The
programs of these tests need nothing but the standard library, so any Python of the machine will do.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys

import pytest

NOBODY = 65534


def python_of_anybody() -> str:
    """Its path; skips the test where there is none."""
    found = _found()
    if found is None:
        pytest.skip("missing: a Python that other users may run, such as Debian's python3")
    return found


@functools.cache
def _found() -> str | None:
    for candidate in (getattr(sys, "_base_executable", sys.executable), shutil.which("python3", path="/usr/bin:/bin")):
        # setpriv, because user= of subprocess would fork this process, which may have gRPC in it.
        command = [
            "setpriv",
            f"--reuid={NOBODY}",
            f"--regid={NOBODY}",
            "--clear-groups",
            str(candidate),
            "-I",
            "-c",
            "import socket",
        ]
        if candidate and subprocess.run(command, check=False, capture_output=True, cwd="/", timeout=60).returncode == 0:
            return candidate
    return None
