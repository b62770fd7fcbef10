"""libnvidia-ml: is it found, which file is it, and where was it looked for?

The loader itself is asked, in a process that loads the library as the collector does: it tells where it looked when LD_DEBUG says
`libs` (ld.so(8)), and why it failed in its own words. Rejected: a search of our own through the cache and the usual folders, which would
differ from the loader's where it matters.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgspec

from guest_service.collector.loaded_library import DEFAULT_LIBRARY
from guest_service.doctor.cards import SIMULATED, cards_for_nvml
from guest_service.doctor.machine import Guest
from guest_service.host_facts.command import CommandError, run_command
from guest_transport.doctor.checks import in_thread
from guest_transport.doctor.findings import Finding, note, ok, wrong

TRY_LIBRARY = Path(__file__).parents[1] / "collector/try_library.py"
# Mapping a library takes milliseconds, from a cold disk a second; a constructor that hangs would hang the collector too.
LOAD_SECONDS = 5.0
# The loader's account of one library in some sixty folders takes 10 KiB, of everything that Python loads before it 30 KiB.
_ACCOUNT_LIMIT_BYTES = 512 * 1024
# Variants for newer processors, which the loader tries in each folder first.
_VARIANT = re.compile(r"(/(glibc-hwcaps/[^/]+|tls|haswell|x86_64|aarch64))+$")
_PLACES_SHOWN = 8
# The distribution of NVIDIA that has the module pynvml.
BINDING = "nvidia-ml-py"


class _Answer(msgspec.Struct, frozen=True):
    file: str
    words: str


@dataclass(frozen=True, slots=True)
class LibraryReading:
    """What came of loading `name`: the file, or why not; the places that were looked in; and the shell's LD_LIBRARY_PATH."""

    name: str
    file: str
    words: str
    places: tuple[str, ...]
    search_path: str


async def examine_library(guest: Guest) -> Sequence[Finding]:
    """The library that the collector would load."""
    if guest.config.gpu.simulate is not None:
        return [note(SIMULATED)]
    cards = await cards_for_nvml(guest)
    if isinstance(cards, str):
        return [note(cards)]
    library = judge_library(await read_library(guest.config.gpu.nvml_library or DEFAULT_LIBRARY, guest.environ))
    return [*library, *judge_binding(await in_thread(binding_owners))]


def binding_owners() -> list[str]:
    """The distributions that say that pynvml.py is theirs. Blocks."""
    return sorted(set(metadata.packages_distributions().get("pynvml", ())))


def judge_binding(owners: Sequence[str]) -> list[Finding]:
    """The official one alone: another one's file has other structures, and the driver writes past their end."""
    others = [name for name in owners if name.lower().replace("_", "-") != BINDING]
    if not others:
        return []
    return [
        wrong(
            f"{BINDING} is replaced by {', '.join(others)}",
            f"pip uninstall {' '.join(others)}; pip install --force-reinstall {BINDING}",
        )
    ]


async def read_library(name: str, environ: Mapping[str, str]) -> LibraryReading:
    """Load `name` in a process of its own."""
    search_path = environ.get("LD_LIBRARY_PATH", "")
    settings = ["LD_DEBUG=libs", f"LD_LIBRARY_PATH={search_path}"] if search_path else ["LD_DEBUG=libs"]
    command = ["env", *settings, sys.executable, "-I", "-S", str(TRY_LIBRARY), name]
    try:
        ended = await run_command(command, bound_seconds=LOAD_SECONDS, error_limit_bytes=_ACCOUNT_LIMIT_BYTES)
    except CommandError:
        words = f"loading it did not end within {LOAD_SECONDS:g} s"
        return LibraryReading(name, "", words, (), search_path)
    try:
        answer = msgspec.json.decode(ended.output, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        words = f"the process that loaded it ended with status {ended.status}"
        return LibraryReading(name, "", words, places_of(name, ended.error), search_path)
    return LibraryReading(name, answer.file, answer.words, places_of(name, ended.error), search_path)


def places_of(name: str, account: str) -> tuple[str, ...]:
    """The folders, and the cache, in which the loader looked for `name`, in its order, out of what it wrote for LD_DEBUG=libs.

    Folders of variants for newer processors are left out; empty where the loader gives no account (musl).
    """
    _, _, rest = account.partition(f"find library={name} [")
    tried: dict[str, None] = {}
    for line in rest.splitlines()[1:]:
        if "find library=" in line:
            break
        if found := re.search(r"trying file=(/.*)/|search cache=(/.*)", line):
            tried[_VARIANT.sub("", found[1]) if found[1] else found[2]] = None
    return tuple(tried)


def judge_library(reading: LibraryReading) -> list[Finding]:
    """Loaded, or where it was looked for."""
    if reading.file:
        found = [ok(f"{reading.name}: {reading.file}")]
        named = [folder for folder in reading.search_path.split(":") if folder]
        if "/" not in reading.name and any(reading.places[-1:] == (folder.rstrip("/"),) for folder in named):
            found.append(
                note(
                    f"found through LD_LIBRARY_PATH={reading.search_path} of this shell, which the service may not have",
                    "set gpu.nvml_library, or add the folder to /etc/ld.so.conf.d and run ldconfig",
                )
            )
        return found
    return [wrong(f"{reading.name} cannot be loaded: {reading.words}{_where(reading)}", _advice(reading))]


def _where(reading: LibraryReading) -> str:
    if "/" in reading.name:
        return ""
    shown = reading.places[:_PLACES_SHOWN]
    more = [f"{len(reading.places) - len(shown)} more"] if len(reading.places) > len(shown) else []
    told = f"LD_LIBRARY_PATH={reading.search_path}" if reading.search_path else "LD_LIBRARY_PATH (not set)"
    return f"; looked in {', '.join([told, *shown, *more])}"


def _advice(reading: LibraryReading) -> str:
    if "/" in reading.name:
        return "correct gpu.nvml_library, or leave it out to let the loader search"
    return "install the driver's user-space part of the module's version (Debian: libnvidia-ml1), or set gpu.nvml_library"
