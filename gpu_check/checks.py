"""The nine checks; gpu_check's first lines say what each one means.

Each starts what it needs and leaves nothing behind. Bounds are wide, because a machine with eight cards and no persistence mode takes
seconds where a machine with one takes a tenth.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_check import servers
from gpu_check.machine import COMMAND_SECONDS, Machine, load_driver_in, mirrored_sysfs
from gpu_check.page import series
from gpu_check.verdict import CheckSkippedError, Seen, need
from guest_api.guest_api_pb2 import GpuInfoResponse
from guest_client import GuestClient, ProxyClient
from guest_service.inventory import read_inventory

SAMPLE_SECONDS = 30.0
CARD = "dstack_gpu_memory_total_bytes"
AGE = "dstack_gpu_sample_age_seconds"
SYSTEM = ("dstack_guest_load1", "dstack_guest_memory_total_bytes")
# What the product says of a card whose kernel module is not loaded.
NOT_LOADED = "NVIDIA driver is not loaded"
# The agent of check 7 gives a sample this long, ends its process 2 s later at most, and then leaves the GPU alone for the back-off.
HUNG_SECONDS = 1.5
HUNG_BACKOFF_SECONDS = 4.0
# After an answer the collector ends NVML and exits.
LEAVE_SECONDS = 5.0


class Checks:
    """The checks of one machine, in `folder`."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._machine = machine
        self._folder = folder
        self._agents = 0

    def collector(self) -> Seen:
        """Check 1."""
        command = [sys.executable, "-m", "guest_service", "gpu-info", *self._machine.nvml_flags()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS)
        need(done.returncode == 0, f"gpu-info exited with {done.returncode}: {done.stderr[-200:]}")
        need(done.stdout.count("\n") == 1, f"gpu-info printed {done.stdout.count(chr(10))} lines instead of one")
        sample = json.loads(done.stdout)
        need(not sample["error"], f"the driver says: {sample['error']}")
        need(sample["gpus"], "the driver shows no card")
        on_bus = read_inventory(self._machine.sysfs)
        for card in sample["gpus"]:
            for field in ("uuid", "pci_bus_id"):
                need(card[field], f"card {card['index']} has no {field}: {card['errors']}")
        errors = [f"card {card['index']}: {error}" for card in sample["gpus"] for error in card["errors"]]
        need(
            len(sample["gpus"]) == on_bus.nvidia,
            f"{on_bus.nvidia} NVIDIA cards on the PCI bus, {len(sample['gpus'])} of the driver",
        )
        words = f"{len(sample['gpus'])} cards, cc_enabled {sample['cc_enabled']}, cc_ready {sample['cc_ready']}"
        return Seen(f"{words}, not read: {'; '.join(errors) or 'nothing'}", {"sample": sample, "stderr": done.stderr[-500:]})

    def proxy(self) -> Seen:
        """Check 2."""
        with (
            self._agent() as guest,
            servers.proxy(self._folder / "proxy", {"vm1": guest.grpc}) as host,
            GuestClient(guest.grpc, timeout_seconds=SAMPLE_SECONDS) as direct,
            ProxyClient(host.grpc) as through,
        ):
            before = _value(direct.gpu_info())
            forwarded = through.gpu_info("vm1", timeout_seconds=SAMPLE_SECONDS)
            after = direct.gpu_info(timeout_seconds=SAMPLE_SECONDS)
        need(before.HasField("cc_enabled") == forwarded.HasField("cc_enabled"), "the presence of cc_enabled was lost")
        need(forwarded.HasField("sample_age_ms"), "sample_age_ms was lost")
        need(before.sample_age_ms <= forwarded.sample_age_ms <= after.sample_age_ms, "the age did not grow on its way")
        need(_without_age(before) == _without_age(after), "the sample changed within a second; run it again")
        need(_without_age(forwarded) == _without_age(before), "the forwarded answer differs from the guest's own")
        errors = sum(len(card.errors) for card in forwarded.gpus)
        cc = [getattr(forwarded, name) if forwarded.HasField(name) else None for name in ("cc_enabled", "cc_ready")]
        return Seen(f"equal in every field; cc_enabled {cc[0]}, cc_ready {cc[1]}, {errors} errors", {"cc": cc, "errors": errors})

    def metrics(self) -> Seen:
        """Check 3."""
        with self._agent() as guest:
            answer = _sampled(guest)
            page = series(guest.page("/metrics"))
        need(page.get("dstack_gpu_nvml_up") == [({}, 1.0)], "dstack_gpu_nvml_up is not 1")
        shown = {labels["uuid"] for labels, _ in page.get(CARD, [])}
        expected = {card.uuid for card in answer.gpus if card.HasField("memory_total_bytes")}
        need(shown == expected, f"{CARD}: {sorted(shown)} instead of {sorted(expected)}")
        names = sorted(name for name in page if name.startswith("dstack_gpu_"))
        return Seen(f"{len(names)} GPU series for {len(answer.gpus)} cards", {"names": names})

    def no_gpu(self) -> Seen:
        """Check 4."""
        root = mirrored_sysfs(self._machine.sysfs, self._folder / "without", pci=False)
        with self._agent("--sysfs", str(root)) as guest:
            with GuestClient(guest.grpc) as client:
                wire = client.gpu_info(timeout_seconds=SAMPLE_SECONDS).SerializeToString()
            page = series(guest.page("/metrics"))
        need(wire == b"", f"GpuInfo has {len(wire)} bytes instead of none")
        need(page.get("dstack_gpu_nvml_up") == [({}, 1.0)], "dstack_gpu_nvml_up is not 1")
        of_cards = sorted(name for name, samples in page.items() if any("uuid" in labels for labels, _ in samples))
        need(not of_cards, f"series of cards: {of_cards}")
        return Seen("up 1, no series of a card, GpuInfo of 0 bytes", {})

    def nothing_held(self) -> Seen:
        """Check 5."""
        with self._agent() as guest:
            _sampled(guest)
            servers.wait_for(lambda: not guest.children(), LEAVE_SECONDS, "the collector to end after its answer")
            held = _held_by(guest.process.pid)
            need(not held, f"the agent holds {held}")
            time.sleep(1)
            need(not guest.children(), "a process runs though nobody asks")
        return Seen("no process, no device file and no library a second after a sample", {})

    def late_driver(self) -> Seen:
        """Check 6."""
        library = self._machine.nvml_file()
        root = mirrored_sysfs(self._machine.sysfs, self._folder / "late", pci=True)
        # The library's folder comes as a whole, as a package of the driver is unpacked.
        driver = self._folder / "late/driver"
        options = ("--sysfs", str(root), "--nvml-library", str(driver / library.name))
        with (
            self._agent(*options, config="[gpu]\nfailure_backoff_seconds = 0.5\n") as guest,
            GuestClient(guest.grpc, timeout_seconds=SAMPLE_SECONDS) as client,
        ):
            without_module = client.gpu_info().error
            need(without_module == NOT_LOADED, f"without the module: {without_module!r} instead of {NOT_LOADED!r}")
            load_driver_in(root)
            without_library = client.gpu_info(max_age_seconds=0).error
            need(library.name in without_library, f"without the library: {without_library!r} does not name it")
            driver.symlink_to(library.parent)
            time.sleep(0.6)
            answer = client.gpu_info(max_age_seconds=0)
            need(answer.gpus, f"with both: {answer.error!r} instead of cards")
        return Seen(f"no module: {without_module!r}; no library: {without_library!r}; then {len(answer.gpus)} cards", {})

    def hung_collector(self) -> Seen:
        """Check 7."""
        config = (
            f"[gpu]\nsample_ttl_seconds = 0.5\nsample_timeout_seconds = {HUNG_SECONDS}\n"
            f'failure_backoff_seconds = {HUNG_BACKOFF_SECONDS}\nrefresh = "lazy"\n'
        )
        with self._agent(config=config) as guest:
            _sampled(guest)
            servers.wait_for(lambda: not guest.children(), LEAVE_SECONDS, "the first collector to end")
            time.sleep(0.6)
            stopped = _stop_next_collector(guest)
            started = time.monotonic()
            missing = [name for name in SYSTEM if name not in series(guest.page("/metrics"))]
            need(not missing, f"while the collector hangs the page lacks {missing}")
            servers.wait_for(lambda: not _runs(stopped), SAMPLE_SECONDS, "the hung collector to be killed")
            took = time.monotonic() - started
            until = time.monotonic() + HUNG_BACKOFF_SECONDS - 1.0
            while time.monotonic() < until:
                page = series(guest.page("/metrics"))
                need(not guest.children(), "a collector was started before the back-off was over")
                need(page.get("dstack_gpu_nvml_up") == [({}, 0.0)], "dstack_gpu_nvml_up is not 0 after the failure")
                time.sleep(0.1)
            missing = [name for name in SYSTEM if name not in page]
            need(not missing, f"after the kill the page lacks {missing}")
        return Seen(
            f"killed after {took:.1f} s, none started in the back-off, system series there", {"killed_after_seconds": took}
        )

    def steady(self) -> Seen:
        """Check 8."""
        gap = self._machine.gap_seconds
        with self._agent() as guest:
            cards = len(_sampled(guest).gpus)
            ages = []
            for scrape in range(2):
                if scrape:
                    time.sleep(gap)
                page = series(guest.page("/metrics"))
                need(len(page.get(CARD, [])) == cards, f"scrape {scrape + 1} has {len(page.get(CARD, []))} of {cards} cards")
                need(AGE in page, f"scrape {scrape + 1} has no age")
                ages.append(page[AGE][0][1])
        return Seen(f"two scrapes {gap:.0f} s apart, ages {ages[0]:.2f} s and {ages[1]:.2f} s", {"ages_seconds": ages})

    @contextmanager
    def _agent(self, *options: str, config: str = "") -> Iterator[servers.Server]:
        self._agents += 1
        flags = options if "--sysfs" in options else ("--sysfs", str(self._machine.sysfs), *options)
        library = () if "--nvml-library" in options else tuple(self._machine.nvml_flags())
        with servers.agent(self._folder / f"a{self._agents}", *flags, *library, config=config) as guest:
            yield guest

    # Check 9 stands in gpu_check.nvidia_smi; it needs an agent as these do.
    agent = _agent


def _sampled(guest: servers.Server) -> GpuInfoResponse:
    """The agent's first sample."""
    with GuestClient(guest.grpc, timeout_seconds=SAMPLE_SECONDS) as client:
        return _value(client.gpu_info())


def _value(answer: GpuInfoResponse) -> GpuInfoResponse:
    need(not answer.error, f"GpuInfo: {answer.error}")
    need(answer.gpus, "GpuInfo: no card")
    return answer


def _without_age(answer: GpuInfoResponse) -> GpuInfoResponse:
    copy = GpuInfoResponse()
    copy.CopyFrom(answer)
    copy.ClearField("sample_age_ms")
    return copy


def _held_by(pid: int) -> list[str]:
    """Device files of NVIDIA that a process has open, and NVML libraries that it has mapped."""
    process = Path(f"/proc/{pid}")
    links = []
    for file in (process / "fd").iterdir():
        try:
            links.append(str(file.readlink()))
        except FileNotFoundError:
            continue
    mapped = {line.split(maxsplit=5)[5] for line in (process / "maps").read_text().splitlines() if "libnvidia" in line}
    return sorted({link for link in links if link.startswith("/dev/nvidia")} | mapped)


def _stop_next_collector(guest: servers.Server) -> int:
    """Make the agent take a sample, and SIGSTOP its collector; raises CheckSkippedError when it was faster each time."""
    for _ in range(20):
        guest.page("/metrics")
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            for pid in guest.children():
                os.kill(pid, signal.SIGSTOP)
                if _state(pid) == "T":
                    return pid
        time.sleep(0.6)
    raise CheckSkippedError("each collector was over before it could be stopped")


def _runs(pid: int) -> bool:
    return _state(pid) not in {"", "Z"}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def all_checks(checks: Checks) -> dict[str, Callable[[], Seen]]:
    """The first eight by name, in their order."""
    return {
        "collector": checks.collector,
        "proxy": checks.proxy,
        "metrics": checks.metrics,
        "no-gpu": checks.no_gpu,
        "nothing-held": checks.nothing_held,
        "late-driver": checks.late_driver,
        "hung-collector": checks.hung_collector,
        "steady": checks.steady,
    }
