"""XIDs on their way: a kernel log (a FIFO with its records), a real agent, a real proxy, a caller."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from guest_api.guest_api_pb2 import GpuInfoResponse
from guest_client import GuestClient, ProxyClient
from guest_contract import health
from tests.agent.agent import running_agent
from tests.inventory.sys_tree import SysTree
from tests.proxy.processes import serving
from tests.round_trip.test_first_sample import page

pytestmark = pytest.mark.timeout(120)
CALL_SECONDS = 20.0
FELL_OFF = "NVRM: Xid (PCI:0000:02:00): 79, pid=2718, name=python3, GPU has fallen off the bus."
ELSEWHERE = "NVRM: Xid (PCI:0000:99:00): 13, Graphics Exception"
# The second card cannot even be opened.
LOST = '[[card]]\nuuid = "GPU-a"\n[[card]]\nuuid = "GPU-b"\n[card.fail]\ndevice = 15\n'


def record(text: str) -> bytes:
    return f"4,1,1000000,-;{text}\n".encode()


@pytest.fixture
def sockets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("x")


@pytest.fixture
def log(sockets: Path) -> Path:
    path = sockets / "kmsg"
    os.mkfifo(path)
    return path


def settings(sockets: Path, text: str) -> tuple[str, ...]:
    (sockets / "agent.toml").write_text(text)
    return "--config", f"{sockets}/agent.toml", "--grpc", f"unix:{sockets}/g", "--http", "off"


def write(log: Path, data: bytes) -> None:
    """Waits until the agent has opened its end."""
    with log.open("wb") as file:
        file.write(data)


def first(ask: Callable[[], GpuInfoResponse], enough: Callable[[GpuInfoResponse], object]) -> GpuInfoResponse:
    """The first answer that `enough` is content with."""
    while not enough(reply := ask()):
        pass
    return reply


def answer(socket: str, enough: Callable[[GpuInfoResponse], object]) -> GpuInfoResponse:
    with GuestClient(f"unix:{socket}", timeout_seconds=CALL_SECONDS) as guest:
        return first(guest.gpu_info, enough)


def answer_of_proxy(socket: str, enough: Callable[[GpuInfoResponse], object]) -> GpuInfoResponse:
    with ProxyClient(f"unix:{socket}", timeout_seconds=CALL_SECONDS) as proxy:
        return first(lambda: proxy.gpu_info("vm1"), enough)


def page_with(address: str, words: str) -> str:
    """The first page of metrics that has them."""
    while words not in (text := page(address)):
        pass
    return text


async def test_a_callers_answer_has_the_xids_of_each_card_also_of_a_lost_one(sockets: Path, log: Path) -> None:
    rack = sockets / "rack.toml"
    rack.write_text(LOST)
    flags = settings(sockets, f'[host]\nkernel_log = "{log}"\n')
    with running_agent(*flags, "--simulate", str(rack)):
        await asyncio.to_thread(write, log, record(FELL_OFF) * 3 + record(ELSEWHERE))
        async with serving("--guest", f"vm1=unix:{sockets}/g", "--grpc", f"unix:{sockets}/p", "--http", "127.0.0.1:0") as proxy:
            address = (await proxy.log_line("listening for HTTP on")).rpartition(" ")[2].strip()
            fleet = await asyncio.to_thread(page_with, address, "dstack_gpu_xid_last_timestamp_seconds{")
            reply = await asyncio.to_thread(answer_of_proxy, f"{sockets}/p", lambda reply: reply.unplaced_xids and reply.gpus)
    assert [[(x.xid, x.count) for x in card.xids] for card in reply.gpus] == [[], [(79, 3)]]
    assert reply.gpus[1].xids[0].HasField("last_age_ms")
    assert [(x.xid, x.pci_bus_id) for x in reply.unplaced_xids] == [(13, "00000000:99:00.0")]
    lost = 'vm_id="vm1",index="1",uuid="",pci_bus_id="00000000:02:00.0"'
    assert f'dstack_gpu_xid_errors_total{{{lost},xid="79"}} 3\n' in fleet
    assert f"dstack_gpu_health{{{lost}}} 2\n" in fleet
    assert f'dstack_gpu_health_reason{{{lost},reason="xid_reboot"}} 1\n' in fleet
    assert "xid_reboot" in {reason.code for reason in health.judge_card(reply.gpus[1], reply).reasons}


def test_a_driver_that_is_gone_leaves_every_xid_unplaced(sockets: Path, log: Path) -> None:
    tree = SysTree(sockets / "sys")
    tree.add("0000:02:00.0", driver="nvidia")
    flags = settings(sockets, f'[host]\nsysfs_root = "{tree.root}"\nkernel_log = "{log}"\n')
    with running_agent(*flags):
        write(log, record(FELL_OFF))
        reply = answer(f"{sockets}/g", lambda reply: reply.unplaced_xids)
    assert reply.error == "NVIDIA driver is not loaded"
    assert [x.xid for x in reply.unplaced_xids] == [79]


def test_a_guest_without_a_card_opens_no_log_and_answers_nothing(sockets: Path, log: Path) -> None:
    tree = SysTree(sockets / "sys")
    flags = settings(sockets, f'[host]\nsysfs_root = "{tree.root}"\nkernel_log = "{log}"\n')
    with running_agent(*flags) as agent:
        assert answer(f"{sockets}/g", lambda reply: True).ByteSize() == 0
        # Nobody has the FIFO open for reading.
        with pytest.raises(OSError, match="No such device or address"):
            os.open(log, os.O_WRONLY | os.O_NONBLOCK)
        assert not [line for line in agent.lines if "XID" in line]


def test_a_log_that_is_not_there_costs_the_xids_and_nothing_else(sockets: Path) -> None:
    flags = settings(sockets, f'[host]\nkernel_log = "{sockets}/nothing"\n')
    with running_agent(*flags, "--simulate", "h200") as agent:
        agent.log_line(f"XIDs are not known: {sockets}/nothing: No such file")
        assert len(answer(f"{sockets}/g", lambda reply: True).gpus) == 1
