"""Why a value or a whole sample is unknown, in words for an engineer who reads them in a metric or an RPC.

The words for NVML's codes are those of its own nvmlErrorString; they stand here because they are needed also where no library is loaded.
"""

from __future__ import annotations

# An entry is read by people; NVML's own texts are under 100 characters, the loader's under 300 with a long path.
ENTRY_LIMIT_CHARACTERS = 240
ERROR_LIMIT_CHARACTERS = 1000

# What a 32-bit value is before a call: a driver that returns success and writes nothing leaves it.
UNWRITTEN = 0xFFFFFFFF
# Not a code of NVML: a call returned success and left what it should have written as it was.
NOTHING_WRITTEN = -1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
FUNCTION_NOT_FOUND = 13
ARGUMENT_VERSION_MISMATCH = 25
DEPRECATED = 26
# What a group's question answers where a card or a driver does not have the value: normal, and no news.
NOT_APPLICABLE = (NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED)

WORDS = {
    NOTHING_WRITTEN: "Success, but nothing was written",
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    5: "Already Initialized",
    6: "Not Found",
    7: "Insufficient Size",
    8: "Insufficient External Power",
    9: "Driver Not Loaded",
    10: "Timeout",
    11: "Interrupt Request Issue",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    14: "Corrupted infoROM",
    15: "GPU is lost",
    16: "GPU requires reset",
    17: "The operating system has blocked the request",
    18: "Driver/library version mismatch",
    19: "In use by another client",
    20: "Insufficient Memory",
    21: "No data",
    22: "vGPU ECC not supported",
    23: "Insufficient resources",
    24: "Frequency not supported",
    25: "Argument version mismatch",
    26: "Deprecated",
    27: "Not ready",
    28: "GPU not found",
    29: "Invalid state",
    999: "Unknown Error",
}

# What to do, for the codes with which nvmlInit fails on machines in the field. NVIDIA's stub library loads, and answers each call with 12.
ADVICE = {
    DRIVER_NOT_LOADED: "load the kernel module nvidia",
    12: "this libnvidia-ml is not the driver's, most likely CUDA's stub: take …/stubs out of LD_LIBRARY_PATH, or name the driver's file in "
    "gpu.nvml_library (usually libnvidia-ml.so.1 in /usr/lib/x86_64-linux-gnu or /usr/lib64)",
    17: "a cgroup or a sandbox blocks /dev/nvidiactl and /dev/nvidia*: allow these devices",
    18: "the kernel module and libnvidia-ml.so.1 are of different driver versions: reload the module, or reboot",
    999: "/dev/nvidiactl or /dev/nvidia* are gone or no longer allowed (in a container a systemctl daemon-reload on its host does that): "
    "restart the container, or this service; else dmesg (Xid) and nvidia-smi say more",
}


class NvmlFailure(Exception):  # noqa: N818 (a modelled answer of the driver, not an error of this program)
    """An NVML call returned `code`; the text says it in words with the code."""

    def __init__(self, code: int, words: str = "") -> None:
        self.code = code
        super().__init__(f"{WORDS.get(code) or words or 'NVML error'} ({code})")


def flag(value: int) -> bool:
    """The answer yes or no of a driver; raises NvmlFailure when it wrote none."""
    if value == UNWRITTEN:
        raise NvmlFailure(NOTHING_WRITTEN)
    return value != 0


class SampleFailure(Exception):  # noqa: N818 (as above)
    """Nothing is known about any GPU; the text says why and what to do."""


def bounded(text: str, limit: int = ENTRY_LIMIT_CHARACTERS) -> str:
    """`text` as valid Unicode on one line, at most `limit` characters long."""
    text = " ".join(text.encode("utf-8", "replace").decode("utf-8", "replace").split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def cannot_start(failure: NvmlFailure, control_device: str = "/dev/nvidiactl") -> str:
    """What to say when nvmlInit failed; without permission it names the group that may use the device files."""
    advice = _permission_advice(control_device) if failure.code == NO_PERMISSION else ADVICE.get(failure.code, "")
    return f"NVML cannot start: {failure}" + (f": {advice}" if advice else "")


def _permission_advice(control_device: str) -> str:
    import grp  # noqa: PLC0415 (needed on this path only)
    import os  # noqa: PLC0415 (as above)

    try:
        group_id = os.stat(control_device).st_gid  # noqa: PTH116 (pathlib costs 5 ms of a 10 ms start)
    except OSError:
        return f"add the user to the device group, the group that owns {control_device} and /dev/nvidia*"
    try:
        group = grp.getgrgid(group_id).gr_name
    except KeyError:
        group = str(group_id)
    return f"add the user to the device group {group}, which owns {control_device}, or open /dev/nvidia* to it"
