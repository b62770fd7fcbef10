"""Runs a program under a seccomp profile as container runtimes read it: python -m tests.kubernetes.under_seccomp PROFILE PROGRAM ARGUMENTS…

The rules go to libseccomp, as runc gives them; a name that this processor has no call of is left out, as there. Rejected: podman in its
place (it needs an image and root, and this is about the profile alone).
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
# enum scmp_compare of libseccomp's seccomp.h.
_COMPARE = {"SCMP_CMP_NE": 1, "SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}


class _Argument(ctypes.Structure):
    """struct scmp_arg_cmp."""

    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def load(profile: dict[str, Any]) -> None:
    """Put this process under `profile` for good."""
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    context = ctypes.c_void_p(library.seccomp_init(_ERRNO | profile["defaultErrnoRet"]))
    assert context.value
    for rule in profile["syscalls"]:
        assert rule["action"] == "SCMP_ACT_ALLOW"
        arguments = rule.get("args", [])
        array = (_Argument * len(arguments))(
            *(_Argument(each["index"], _COMPARE[each["op"]], each["value"], each.get("valueTwo", 0)) for each in arguments)
        )
        for name in rule["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            # Negative: no call of this processor (-1: of none).
            assert number != -1, f"{name}: no system call"
            if number >= 0:
                failed = library.seccomp_rule_add_array(context, ctypes.c_uint32(_ALLOW), number, len(arguments), array)
                assert not failed, f"{name}: {os.strerror(-failed)}"
    failed = library.seccomp_load(context)
    assert not failed, os.strerror(-failed)


if __name__ == "__main__":
    load(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    os.execv(sys.argv[2], sys.argv[2:])  # the program to run
