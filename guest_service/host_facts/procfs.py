"""Texts of /proc and os-release, parsed; nothing here opens a file.

Formats: proc(5), os-release(5), fstab(5) for the escapes of mounts. A text that is not as documented raises ValueError: a wrong parse must
become a failure, never a zero. Rejected: psutil for these, whose /proc root is global to the process.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

UINT64_MAX = 2**64 - 1
UINT32_MAX = 2**32 - 1
# Interfaces that are shown: Ethernet under both naming schemes, and WireGuard; container bridges are not.
SHOWN_PREFIXES = ("eth", "en", "wg")
# Lines of /proc/cpuinfo that name the processor, best first: x86 and RISC-V boards, IBM Z, POWER, older ARM.
_CPU_NAMES = ("model name", "Model", "processor 0", "cpu", "uarch", "Hardware")


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of memory and swap."""

    total: int
    available: int
    free: int
    swap_total: int
    swap_free: int


def parse_meminfo(text: str) -> Memory:
    """Memory from /proc/meminfo."""
    found = dict(re.findall(r"^(MemTotal|MemAvailable|MemFree|SwapTotal|SwapFree):\s+(\d+) kB$", text, re.MULTILINE))
    missing = {"MemTotal", "MemAvailable", "MemFree", "SwapTotal", "SwapFree"} - found.keys()
    if missing:
        raise ValueError(f"no {min(missing)} in meminfo")
    sizes = {name: bounded(int(kibibytes) * 1024, UINT64_MAX) for name, kibibytes in found.items()}
    if sizes["SwapFree"] > sizes["SwapTotal"] or max(sizes["MemAvailable"], sizes["MemFree"]) > sizes["MemTotal"]:
        raise ValueError("more is free than there is in meminfo")
    return Memory(
        total=sizes["MemTotal"],
        available=sizes["MemAvailable"],
        free=sizes["MemFree"],
        swap_total=sizes["SwapTotal"],
        swap_free=sizes["SwapFree"],
    )


def parse_loadavg(text: str) -> tuple[int, int, int]:
    """The three load averages times 100, truncated; digit by digit, because 0.29 * 100 is 28.99… in floating point."""
    match = re.match(r"(\d+)\.(\d\d)\d* (\d+)\.(\d\d)\d* (\d+)\.(\d\d)\d* ", text)
    if match is None:
        raise ValueError("loadavg does not start with three numbers")
    one, five, fifteen = (bounded(int(match[i]) * 100 + int(match[i + 1]), UINT32_MAX) for i in (1, 3, 5))
    return one, five, fifteen


def parse_uptime(text: str) -> int:
    """Whole seconds since boot from /proc/uptime."""
    match = re.match(r"(\d+)(\.\d+)? ", text)
    if match is None:
        raise ValueError("uptime does not start with a number")
    return bounded(int(match[1]), UINT64_MAX)


# The first numbers of a cpu line of /proc/stat; what guests of this machine ran is in user and nice.
CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


def parse_cpu_ticks(text: str) -> dict[str, int]:
    """Ticks of all processors together since boot, by mode, from /proc/stat; kernels differ in how many modes they know."""
    match = re.match(r"cpu +(\d+(?: \d+)*)$", text.partition("\n")[0])
    if match is None:
        raise ValueError("stat does not start with a cpu line")
    return dict(zip(CPU_MODES, (bounded(int(ticks), UINT64_MAX) for ticks in match[1].split()), strict=False))


def parse_online_cpus(text: str) -> int:
    """Logical processors online: the cpuN lines of /proc/stat, which has them on every architecture."""
    count = len(re.findall(r"^cpu\d+ ", text, re.MULTILINE))
    if count == 0:
        raise ValueError("no cpu lines in stat")
    return count


def parse_cpu_model(text: str) -> str:
    """The first processor's brand string from /proc/cpuinfo; on ARM its implementer and part; empty when it names none."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and (words := " ".join(value.split())):
            fields.setdefault(name.strip(), words)
    for name in _CPU_NAMES:
        if name in fields:
            return fields[name]
    if "CPU implementer" in fields and "CPU part" in fields:
        return f"ARM implementer {fields['CPU implementer']} part {fields['CPU part']}"
    return ""


def parse_os_release(text: str) -> tuple[str, str]:
    """Name and version from os-release; "Linux" is the name that os-release(5) sets for a file without one."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, raw = line.strip().partition("=")
        if not equals or key.startswith("#"):
            continue
        try:
            values[key] = "".join(shlex.split(raw))
        except ValueError:
            continue  # An unbalanced quote spoils its own line only.
    return values.get("NAME") or "Linux", values.get("VERSION_ID", "")


def parse_mounts(text: str) -> dict[str, str]:
    """Device by mount point from /proc/self/mounts; what was mounted last on a place is what is seen there."""
    devices: dict[str, str] = {}
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) >= 2:
            devices[_unescape(fields[1])] = _unescape(fields[0])
    return devices


def _unescape(field: str) -> str:
    """The octal escapes of mounts (space, tab, newline, backslash, #) undone; other bytes stay."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda match: chr(int(match[1], 8)), field)


def parse_net_dev(text: str) -> dict[str, tuple[int, int, int, int]]:
    """(rx_bytes, tx_bytes, rx_errors, tx_errors) by interface from /proc/net/dev."""
    counters: dict[str, tuple[int, int, int, int]] = {}
    for line in text.splitlines()[2:]:
        name, colon, rest = line.rpartition(":")
        numbers = rest.split()
        if not colon or len(numbers) < 16:
            raise ValueError("a line of net/dev is not as documented")
        rx_bytes, rx_errors, tx_bytes, tx_errors = (bounded(int(numbers[i]), UINT64_MAX) for i in (0, 2, 8, 10))
        counters[name.strip()] = (rx_bytes, tx_bytes, rx_errors, tx_errors)
    return counters


def bounded(value: int, limit: int) -> int:
    """`value`, which fits the contract's field; ValueError where it would not."""
    if not 0 <= value <= limit:
        raise ValueError(f"{value} does not fit")
    return value
