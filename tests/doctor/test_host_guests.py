"""`vmm-proxy doctor` asks every guest who it is: real agents, and guests that hang, lie and talk nonsense."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from guest_api import guest_api_pb2
from tests.agent.agent import running_agent
from tests.doctor.places import HostPlace
from tests.doctor.reports import host_doctor
from tests.proxy.raw_guest import Stream, frame, raw_guest
from tests.transport.vmm import Vmm

# Each test starts several processes, and a machine with other work may be slow.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def place(sockets: Path) -> HostPlace:
    return HostPlace(sockets)


def _info(instance_id: bytes = b"", version: str = "9") -> bytes:
    return guest_api_pb2.GuestInfo(version=version, instance_id=instance_id).SerializeToString()


async def _answer(stream: Stream, message: bytes) -> None:
    await stream.head()
    await stream.data(frame(message))
    await stream.send_headers([("grpc-status", "0")], end=True)


def answering(message: bytes) -> Callable[[Stream], Awaitable[None]]:
    return lambda stream: _answer(stream, message)


async def test_a_pinned_guest_is_compared_and_another_vm_in_its_place_is_wrong(place: HostPlace) -> None:
    async with raw_guest(str(place.folder / "g"), answering(_info(b"\xab\xcd"))):
        place.guest("vm1", f"unix:{place.folder}/g", 'instance_id = "abcd"')
        report = await host_doctor(place.write())
        assert report.only("guests")["seen"].endswith("abcd, as pinned")
        place.guests.clear()
        place.guest("vm1", f"unix:{place.folder}/g", 'instance_id = "abce"')
        wrong = (await host_doctor(place.write())).wrong("guests")
    assert "another VM answers" in wrong["seen"]
    assert "it shows abcd, and abce is pinned" in wrong["seen"]


async def test_what_a_hostile_guest_says_of_itself_is_escaped_and_bounded(place: HostPlace) -> None:
    version = "\x1b[2J\r\nok     config  all is well\u202e" + "x" * 5000
    async with raw_guest(str(place.folder / "g"), answering(_info(b"i" * 20, version))):
        place.guest("vm1", f"unix:{place.folder}/g")
        seen = (await host_doctor(place.write())).only("guests")["seen"]
    assert "\\x1b[2J\\r\\n" in seen
    assert seen.isprintable()
    assert len(seen) < 600


async def test_letters_that_the_terminal_does_not_have_are_escaped_and_end_nothing(place: HostPlace) -> None:
    async with raw_guest(str(place.folder / "g"), answering(_info(version="\u6f22"))):
        place.guest("vm1", f"unix:{place.folder}/g")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "vmm_proxy", "doctor", "--config", str(place.write())),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONIOENCODING": "ascii:strict"},
        )
        out, err = await asyncio.wait_for(process.communicate(), 50)
    assert err == b""
    assert b"guest-service \\u6f22 at " in out


async def test_no_private_socket_is_left_of_guests_that_hang(place: HostPlace) -> None:
    async def hold(_connection: socket.socket, _line: bytes) -> None:
        await asyncio.Event().wait()

    (place.folder / "tmp").mkdir()
    vmm = Vmm(place.folder / "v", hold)
    vmm.start()
    try:
        place.guest("vm1", f"hvsock:{place.folder}/v:8000")
        report = await host_doctor(place.write(), TMPDIR=str(place.folder / "tmp"))
    finally:
        await vmm.close()
    assert report.wrong("guests")
    assert list((place.folder / "tmp").iterdir()) == []


async def test_guests_that_hang_refuse_or_talk_nonsense_are_a_line_each_and_hold_up_nobody(place: HostPlace) -> None:
    async def never(_stream: Stream) -> None:
        await asyncio.Event().wait()

    place.guest("refused", f"unix:{place.folder}/r")
    place.guest("nonsense", f"unix:{place.folder}/n")
    place.guest("good", f"unix:{place.folder}/good")
    for number in range(20):
        place.guest(f"hung-{number}", f"unix:{place.folder}/hung")
        place.guests[-1] = place.guests[-1].replace("/hung", f"/hung-{number}")
        (place.folder / f"hung-{number}").symlink_to("hung")
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(f"{place.folder}/r")
    async with (
        raw_guest(str(place.folder / "hung"), never),
        raw_guest(str(place.folder / "n"), answering(b"\x0a\x02\xff\xfe")),
        raw_guest(str(place.folder / "good"), answering(_info())),
    ):
        report = await host_doctor(place.write())
    found = {finding["seen"].split()[1].rstrip(":"): finding for finding in report.of("guests")}
    assert len(found) == 23
    assert (found["good"]["verdict"], "no instance id" in found["good"]["seen"]) == ("ok", True)
    assert "connection refused" in found["refused"]["seen"]
    assert "does not decode" in found["nonsense"]["seen"]
    assert found["nonsense"]["do"].startswith("it is reached and does not say who it is")
    assert "does an agent listen there" in found["refused"]["do"]
    assert all(found[f"hung-{number}"]["verdict"] == "wrong" for number in range(20)), (
        "asked at once: one after the other is two minutes"
    )


async def test_guests_that_show_one_identity_are_a_note(place: HostPlace) -> None:
    async with (
        raw_guest(str(place.folder / "a"), answering(_info(b"same"))),
        raw_guest(str(place.folder / "b"), answering(_info(b"same"))),
    ):
        for name in ("a", "b"):
            place.guest(name, f"unix:{place.folder}/{name}")
        found = (await host_doctor(place.write())).of("guests")
    assert [finding["verdict"] for finding in found] == ["ok", "ok", "note"]
    assert "guests a, b show one instance_id" in found[2]["seen"]


async def test_a_vmm_that_refuses_the_port_is_told_and_no_socket_is_probed_by_open_and_close(place: HostPlace) -> None:
    async def refuse(connection: socket.socket, _line: bytes) -> None:
        connection.close()

    vmm = Vmm(place.folder / "v", refuse)
    vmm.start()
    try:
        place.guest("vm1", f"hvsock:{place.folder}/v:8000")
        report = await host_doctor(place.write())
    finally:
        await vmm.close()
    wrong = report.wrong("guests")
    assert "the VMM closed the connection" in wrong["seen"]
    assert "vsock:any:8000" in wrong["do"]
    assert report.only("sockets")["verdict"] == "ok"
    assert set(vmm.lines) == {b"CONNECT 8000\n"}


@pytest.mark.parametrize(
    ("rack", "given", "said"),
    [
        ("h200", "", ""),
        ("none", "", ""),
        ("no-driver", "", "NVIDIA driver is not loaded"),
        ("h200", 'gpus = ["0000:3b:00.0", "0000:5e:00.0"]', "the host gave 2"),
    ],
)
async def test_what_speaks_against_a_guests_cards_is_said_by_the_host_too(
    place: HostPlace, rack: str, given: str, said: str
) -> None:
    address = f"unix:{place.folder}/a"
    with running_agent("--simulate", rack, "--grpc", address, "--http", "off"):
        place.guest("vm1", address, given)
        report = await host_doctor(place.write())
    assert [finding["verdict"] for finding in report.of("guests")] == (["ok", "wrong"] if said else ["ok"])
    assert said in report.of("guests")[-1]["seen"]
