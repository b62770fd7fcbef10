"""The kernel log as captured lines through a real FIFO, and what becomes of them in an answer."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from guest_api.guest_api_pb2 import GpuDevice, GpuInfoResponse
from guest_contract.pci_address import PciAddress
from guest_service.kernel_log.reader import RECORDS_AT_A_TIME, KernelLog
from guest_service.kernel_log.records import Appeared, Xid, parse
from guest_service.kernel_log.xids import ADDRESSES, NUMBERS_PER_ADDRESS, Xids
from tests.eventually import eventually, turns

CARD = PciAddress(0, 0x3B, 0, 0)
SWITCH = PciAddress(0, 0xC1, 0, 0)
# Lines as drivers of their time write them: R580, R470, R390, the NVSwitch driver of R535, and the PCI core of Linux 6.1.
XID_580 = "NVRM: Xid (PCI:0000:3b:00): 79, pid=2718, name=python3, GPU has fallen off the bus."
XID_470 = "NVRM: Xid (PCI:0000:3b:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping."
XID_390 = "NVRM: Xid (0000:3b:00): 31, Ch 0000000b, engmask 00000120, intr 10000000"
SXID = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 46 sourcetrack timeout error (First)"
APPEARS = "pci 0000:3b:00.0: [10de:2330] type 00 class 0x030200"


def record(text: str, *, seconds: float = 1.0, priority: int = 4, sequence: int = 1) -> bytes:
    return f"{priority},{sequence},{round(seconds * 1e6)},-;{text}\n".encode()


@pytest.mark.parametrize(
    ("text", "number", "address", "nvswitch"),
    [(XID_580, 79, CARD, False), (XID_470, 63, CARD, False), (XID_390, 31, CARD, False), (SXID, 24007, SWITCH, True)],
)
def test_each_way_of_writing_a_report_is_read(text: str, number: int, address: PciAddress, nvswitch: bool) -> None:
    assert parse(record(text, seconds=12.5)) == Xid(number, address, nvswitch, 12.5)


def test_a_domain_of_more_than_16_bits_is_kept() -> None:
    report = parse(record("NVRM: Xid (PCI:0001e240:3b:00): 13, Graphics Exception"))
    assert isinstance(report, Xid)
    assert report.address.domain == 0x1E240


@pytest.mark.parametrize(
    "data",
    [
        record(XID_580, priority=12),  # facility "user": written by a process
        record(f"app: {XID_580}"),
        record("NVRM: Xid (PCI:0000:3b:00): reset"),
        record("NVRM: Xid (PCI:0000:3b:3f): 79"),  # there are 32 devices on a bus
        record("NVRM: Xid (PCI:0000:3b:00): 99999999999999999999, x"),
        b"",
        b"no record",
        b"4;NVRM",
        b"x,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79",
        b"\xff" * 9000,
        b"4,1,1000000,-;usb 1-1: new device\n SUBSYSTEM=NVRM: Xid (PCI:0000:3b:00): 79\n",
    ],
)
def test_what_is_no_report_of_the_kernel_is_none(data: bytes) -> None:
    assert parse(data) is None


def test_the_dictionary_of_a_record_is_no_text() -> None:
    assert parse(record(APPEARS) + b" SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n") == Appeared(CARD)


class Log:
    """A FIFO as the kernel log, with a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "kmsg"
        os.mkfifo(self.path)
        self.now = 100.0
        self.reader = KernelLog(self.path, clock=lambda: self.now, awake=lambda: self.now)
        self.writer = -1

    async def start(self) -> None:
        await self.reader.start()
        self.writer = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)

    async def write(self, data: bytes) -> None:
        """All of it, as fast as the pipe takes it, and until it was read."""
        while data:
            try:
                data = data[os.write(self.writer, data) :]
            except BlockingIOError:
                await turns()
        await eventually(lambda: not self.waiting())

    def waiting(self) -> int:
        import fcntl
        import termios

        buffer = bytearray(4)
        fcntl.ioctl(self.writer, termios.FIONREAD, buffer)
        return int.from_bytes(buffer, "little")

    def answer(self) -> GpuInfoResponse:
        reply = GpuInfoResponse(
            gpus=[GpuDevice(index=0, pci_bus_id="00000000:3B:00.0"), GpuDevice(index=1, pci_bus_id="00000000:5E:00.0")]
        )
        assert self.reader.xids is not None
        self.reader.xids.write_to(reply, self.now)
        return reply


@pytest.fixture
async def kernel_log(tmp_path: Path) -> AsyncIterator[Log]:
    found = Log(tmp_path)
    await found.start()
    yield found
    os.close(found.writer)
    await found.reader.close()


async def test_reports_stand_beside_their_card_with_count_and_age(kernel_log: Log) -> None:
    await kernel_log.write(record(XID_580) + record(XID_470) + record(XID_580))
    kernel_log.now += 2.0
    reply = kernel_log.answer()
    assert [(x.xid, x.count, x.pci_bus_id) for x in reply.gpus[0].xids] == [(63, 1, ""), (79, 2, "")]
    assert {x.last_age_ms for x in reply.gpus[0].xids} <= {2000, 101_000}
    assert not reply.gpus[1].xids
    assert not reply.unplaced_xids


async def test_an_address_that_is_no_card_here_and_a_switch_are_unplaced(kernel_log: Log) -> None:
    await kernel_log.write(record(SXID) + record("NVRM: Xid (PCI:0000:99:00): 79, x"))
    reply = kernel_log.answer()
    assert [(x.xid, x.pci_bus_id, x.nvswitch) for x in reply.unplaced_xids] == [
        (79, "00000000:99:00.0", False),
        (24007, "00000000:C1:00.0", True),
    ]


async def test_with_an_error_every_report_is_unplaced(kernel_log: Log) -> None:
    await kernel_log.write(record(XID_580))
    reply = GpuInfoResponse(error="the driver did not answer")
    assert kernel_log.reader.xids is not None
    kernel_log.reader.xids.write_to(reply, kernel_log.now)
    assert [x.xid for x in reply.unplaced_xids] == [79]


async def test_a_card_that_comes_back_after_a_reset_has_no_report_from_before_it(kernel_log: Log) -> None:
    await kernel_log.write(record(XID_580) + record(APPEARS) + record(XID_470))
    assert [x.xid for x in kernel_log.answer().gpus[0].xids] == [63]


async def test_records_are_split_at_line_ends_however_they_come(kernel_log: Log) -> None:
    data = record(XID_580) * 3
    for start in range(0, len(data), 7):
        await kernel_log.write(data[start : start + 7])
    assert [x.count for x in kernel_log.answer().gpus[0].xids] == [3]


async def test_a_flood_is_counted_and_others_get_their_turns(kernel_log: Log) -> None:
    lines = 100_000
    taken = 0

    async def other() -> None:
        nonlocal taken
        while True:
            taken += 1
            await turns()

    task = asyncio.create_task(other())
    await kernel_log.write(record(XID_580) * lines)
    task.cancel()
    assert [x.count for x in kernel_log.answer().gpus[0].xids] == [lines]
    assert taken > lines / RECORDS_AT_A_TIME / 100


async def test_a_line_without_an_end_fills_nothing(kernel_log: Log) -> None:
    await kernel_log.write(b"x" * 1_000_000 + b"\n" + record(XID_580))
    assert [x.count for x in kernel_log.answer().gpus[0].xids] == [1]


async def test_numbers_and_addresses_are_bounded_and_the_rest_is_counted() -> None:
    xids = Xids()
    for number in range(NUMBERS_PER_ADDRESS + 5):
        xids.add(Xid(number, CARD, False, 0.0), 0.0)
    for bus in range(ADDRESSES + 3):
        xids.add(Xid(79, PciAddress(1, bus, 0, 0), False, 0.0), 0.0)
    reply = GpuInfoResponse()
    xids.write_to(reply, 0.0)
    assert len(reply.unplaced_xids) == NUMBERS_PER_ADDRESS + ADDRESSES - 1
    assert xids.over_bounds == 5 + 4


class Ring:
    """/dev/kmsg as the kernel gives it: one record a read, EPIPE where records were overwritten, EAGAIN at the end."""

    def __init__(self, *steps: bytes | int) -> None:
        self.steps = list(steps)

    def __call__(self, fd: int, size: int) -> bytes:
        if not self.steps:
            raise BlockingIOError(errno.EAGAIN, "nothing more")
        step = self.steps.pop(0)
        if isinstance(step, int):
            raise OSError(step, os.strerror(step))
        return step


async def read_to_the_end(path: Path, ring: Ring, *, now: float, awake: float) -> KernelLog:
    path.write_bytes(b"")
    ready, writer = os.pipe()
    reader = KernelLog(Path(f"/proc/self/fd/{ready}"), clock=lambda: now, awake=lambda: awake, read=ring)
    await reader.start()
    os.write(writer, b"x")
    await eventually(lambda: not ring.steps)
    await turns()
    os.close(ready)
    os.close(writer)
    return reader


async def test_overwritten_records_are_counted_and_reading_goes_on(tmp_path: Path) -> None:
    ring = Ring(record(XID_580), errno.EPIPE, record(XID_470), errno.EINVAL, record(XID_390))
    reader = await read_to_the_end(tmp_path / "x", ring, now=100.0, awake=100.0)
    reply = GpuInfoResponse()
    assert reader.xids is not None
    reader.xids.write_to(reply, 100.0)
    await reader.close()
    assert [x.xid for x in reply.unplaced_xids] == [31, 63, 79]
    assert reader.lost == 1


@pytest.mark.parametrize(("slept", "age_ms"), [(0.0, 99_000), (3600.0, None)])
async def test_what_was_there_at_the_start_has_its_age_unless_the_machine_slept(
    tmp_path: Path, slept: float, age_ms: int | None
) -> None:
    reader = await read_to_the_end(tmp_path / "x", Ring(record(XID_580, seconds=1.0)), now=100.0 + slept, awake=100.0)
    reply = GpuInfoResponse()
    assert reader.xids is not None
    reader.xids.write_to(reply, 100.0 + slept)
    await reader.close()
    (entry,) = reply.unplaced_xids
    assert (entry.last_age_ms if entry.HasField("last_age_ms") else None) == age_ms


async def test_a_log_that_may_not_be_read_is_unknown_and_not_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reader = KernelLog(tmp_path / "absent", clock=lambda: 0.0)
    await reader.start()
    assert reader.xids is None
    assert "absent: No such file or directory" in reader.problem
    assert "XIDs are not known" in caplog.text
    await reader.close()


async def test_the_log_of_this_kernel_is_read_to_its_end() -> None:
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("/dev/kmsg is not readable here")
    reader = KernelLog(Path("/dev/kmsg"), clock=lambda: 0.0)
    await reader.start()
    if reader.problem:
        pytest.skip(reader.problem)
    await eventually(lambda: reader.caught_up)
    assert reader.xids is not None
    await reader.close()


@pytest.mark.parametrize("name", ["/dev/null", "file"])
async def test_what_is_no_log_is_unknown_and_holds_nobody_up(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(record(XID_580))
    reader = KernelLog(tmp_path / name, clock=lambda: 1.0)
    await reader.start()
    assert reader.xids is None
    assert reader.problem
    assert "XIDs are not known" in caplog.text
    await reader.close()
