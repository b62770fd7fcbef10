"""A VMM registers its guests: kept on disk, refused by rule, open to administrators only."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import grpc
import pytest
import trustme

from guest_api import guest_api_pb2
from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from guest_transport.addresses import TcpAddress, VsockAddress
from guest_transport.errors import SettingsError
from guest_transport.options import channel_options
from tests.eventually import eventually, turns
from tests.proxy import processes
from tests.proxy.raw_guest import Stream, raw_guest
from tests.proxy.raw_http_guest import always, raw_http_guest
from tests.proxy.running import Proxy, running_proxy
from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.directory.registered import RegisteredGuests, TooManyError

FULL = fleet_pb2.GuestEntry(
    id="vm1",
    address="vsock:3:8000",
    labels={"rack": "r7"},
    state=fleet_pb2.DESIRED_STATE_STOPPED,
    instance_id=b"\x00\xff",
    gpus=["0000:3b:00.0"],
)


async def no_gpu(stream: Stream) -> None:
    await stream.answer(b"")


async def silence(stream: Stream) -> None:
    await stream.reset.wait()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "registered.json"


@pytest.fixture
async def proxy(sockets: Path, file: Path) -> AsyncIterator[Proxy]:
    directory = Directory()
    registered = RegisteredGuests(file, directory, allow_plaintext=False)
    async with running_proxy(sockets / "proxy", directory=directory, registered=registered) as proxy:
        yield proxy


def stub_of(proxy: Proxy) -> fleet_pb2_grpc.DirectoryServiceAsyncStub:
    return fleet_pb2_grpc.DirectoryServiceStub(proxy.channel)


async def register(proxy: Proxy, entry: fleet_pb2.GuestEntry) -> fleet_pb2.GuestEntry:
    return (await stub_of(proxy).RegisterGuest(fleet_pb2.RegisterGuestRequest(guest=entry), timeout=5)).guest


async def refused(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_a_registered_guest_is_kept_whole_and_there_again_after_a_restart(proxy: Proxy, file: Path) -> None:
    assert await register(proxy, FULL) == FULL
    again = Directory()
    await asyncio.to_thread(RegisteredGuests(file, again, allow_plaintext=False).load)
    assert again.get("vm1") == proxy.directory.get("vm1")
    assert not [path for path in file.parent.iterdir() if path != file], "no temporary file is left"


async def test_a_guest_that_becomes_one_with_dstacks_agent_keeps_its_address_and_is_asked_in_http(
    proxy: Proxy, sockets: Path, file: Path
) -> None:
    async with raw_http_guest(str(sockets / "g"), always({"GpuInfo": b""})) as guest:
        await register(proxy, fleet_pb2.GuestEntry(id="vm1", address=guest.address.removeprefix("dstack+")))
        error = await proxy.failure("vm1")
        assert (error.code(), error.details()) == (
            grpc.StatusCode.UNAVAILABLE,
            "guest vm1: unreachable: it speaks HTTP/1.1 (dstack's own agent? Its address begins with dstack+ then)",
        )
        entry = fleet_pb2.GuestEntry(id="vm1", address=guest.address, state=fleet_pb2.DESIRED_STATE_RUNNING)
        answer = await stub_of(proxy).UpdateGuest(fleet_pb2.UpdateGuestRequest(guest=entry), timeout=5)
        assert answer.guest == entry
        assert await proxy.gpu_info("vm1") == guest_api_pb2.GpuInfoResponse()
        guest.faults.clear()
    again = Directory()
    await asyncio.to_thread(RegisteredGuests(file, again, allow_plaintext=False).load)
    assert again.get("vm1") == proxy.directory.get("vm1")


async def test_a_guest_is_called_as_soon_as_it_is_registered_and_not_after(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), no_gpu) as guest:
        await register(proxy, fleet_pb2.GuestEntry(id="vm1", address=guest.address))
        assert await proxy.gpu_info("vm1") == guest_api_pb2.GpuInfoResponse()
        await stub_of(proxy).DeregisterGuest(fleet_pb2.DeregisterGuestRequest(id="vm1"), timeout=5)
        assert (await proxy.failure("vm1")).code() is grpc.StatusCode.NOT_FOUND


async def test_deregistering_ends_the_calls_in_flight(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest:
        await register(proxy, fleet_pb2.GuestEntry(id="vm1", address=guest.address))
        failing = asyncio.create_task(proxy.failure("vm1", timeout=30))
        await asyncio.wait_for(guest.called.wait(), 5)
        await stub_of(proxy).DeregisterGuest(fleet_pb2.DeregisterGuestRequest(id="vm1"), timeout=5)
        assert (await asyncio.wait_for(failing, 5)).code() is grpc.StatusCode.UNAVAILABLE


async def test_an_update_replaces_the_whole_entry(proxy: Proxy, file: Path) -> None:
    await register(proxy, FULL)
    small = fleet_pb2.GuestEntry(id="vm1", address="vsock:4:8000", state=fleet_pb2.DESIRED_STATE_RUNNING)
    answer = await stub_of(proxy).UpdateGuest(fleet_pb2.UpdateGuestRequest(guest=small), timeout=5)
    assert answer.guest == small
    assert [guest["address"] for guest in json.loads(file.read_text())["guests"]] == ["vsock:4:8000"]


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        (fleet_pb2.GuestEntry(id="vm1", address="vsock:9:1"), grpc.StatusCode.ALREADY_EXISTS),
        (fleet_pb2.GuestEntry(id="vm2", address="vsock:3:8000"), grpc.StatusCode.ALREADY_EXISTS),
        (fleet_pb2.GuestEntry(id="a/b", address="vsock:9:1"), grpc.StatusCode.INVALID_ARGUMENT),
        (fleet_pb2.GuestEntry(id=".", address="vsock:9:1"), grpc.StatusCode.INVALID_ARGUMENT),
        (fleet_pb2.GuestEntry(id="..", address="vsock:9:1"), grpc.StatusCode.INVALID_ARGUMENT),
        (fleet_pb2.GuestEntry(id="vm2", address="nonsense"), grpc.StatusCode.INVALID_ARGUMENT),
        (fleet_pb2.GuestEntry(id="vm2", address="10.0.0.1:1"), grpc.StatusCode.INVALID_ARGUMENT),
        (fleet_pb2.GuestEntry(id="vm2", address="vsock:9:1", labels={"a\nb": "c"}), grpc.StatusCode.INVALID_ARGUMENT),
        (fleet_pb2.GuestEntry(id="vm2", address="vsock:9:1", labels={"a": "b\nc"}), grpc.StatusCode.INVALID_ARGUMENT),
        (fleet_pb2.GuestEntry(id="vm2", address="vsock:9:1", gpus=["x"]), grpc.StatusCode.INVALID_ARGUMENT),
        (fleet_pb2.GuestEntry(id="vm2", address="vsock:9:1", instance_id=bytes(65)), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_what_cannot_be_registered_is_refused_and_nothing_is_written(
    proxy: Proxy, file: Path, entry: fleet_pb2.GuestEntry, code: grpc.StatusCode
) -> None:
    await register(proxy, fleet_pb2.GuestEntry(id="vm1", address="vsock:3:8000"))
    before = file.read_bytes()
    error = await refused(stub_of(proxy).RegisterGuest(fleet_pb2.RegisterGuestRequest(guest=entry), timeout=5))
    assert error.code() is code
    assert (error.details() or "").isprintable()
    assert file.read_bytes() == before
    assert len(proxy.directory) == 1


async def test_a_guest_of_a_file_or_flag_is_not_changed_by_call(proxy: Proxy) -> None:
    proxy.add("vm1", "vsock:3:8000", source="/etc/vmm-proxy/guests.d/a.toml")
    error = await refused(stub_of(proxy).DeregisterGuest(fleet_pb2.DeregisterGuestRequest(id="vm1"), timeout=5))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "/etc" not in (error.details() or "")
    error = await refused(stub_of(proxy).DeregisterGuest(fleet_pb2.DeregisterGuestRequest(id="nobody"), timeout=5))
    assert error.code() is grpc.StatusCode.NOT_FOUND


async def test_a_change_that_cannot_be_written_is_undone(proxy: Proxy, file: Path) -> None:
    await register(proxy, FULL)
    file.unlink()
    file.mkdir()
    (file / "full").touch()
    error = await refused(
        stub_of(proxy).RegisterGuest(
            fleet_pb2.RegisterGuestRequest(guest=fleet_pb2.GuestEntry(id="vm2", address="vsock:4:1")), timeout=5
        )
    )
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    error = await refused(stub_of(proxy).DeregisterGuest(fleet_pb2.DeregisterGuestRequest(id="vm1"), timeout=5))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert [entry.id for entry in proxy.directory.after()] == ["vm1"]


async def test_changes_at_the_same_time_are_all_kept(proxy: Proxy, file: Path) -> None:
    entries = [fleet_pb2.GuestEntry(id=f"vm{number}", address=f"vsock:{number + 3}:1") for number in range(30)]
    await asyncio.gather(*(register(proxy, entry) for entry in entries))
    assert {guest["id"] for guest in json.loads(file.read_text())["guests"]} == {entry.id for entry in entries}


async def test_without_a_file_to_keep_them_guests_are_not_registered(sockets: Path) -> None:
    async with running_proxy(sockets / "other") as proxy:
        error = await refused(stub_of(proxy).RegisterGuest(fleet_pb2.RegisterGuestRequest(guest=FULL), timeout=5))
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "directory.registered_file" in (error.details() or "")


async def test_a_caller_over_tcp_is_no_administrator(sockets: Path, file: Path) -> None:
    directory = Directory()
    registered = RegisteredGuests(file, directory, allow_plaintext=False)
    listening = running_proxy(sockets / "other", also=TcpAddress("127.0.0.1", 0), directory=directory, registered=registered)
    async with listening as proxy:
        address = proxy.parts.server.addresses[1]
        assert isinstance(address, TcpAddress)
        async with grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)) as channel:
            stub = fleet_pb2_grpc.DirectoryServiceStub(channel)
            error = await refused(stub.RegisterGuest(fleet_pb2.RegisterGuestRequest(guest=FULL), timeout=5))
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert not file.exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"guests": [{"id": "vm1"}]}',
        '{"guests": [{"id": "a/b", "address": "vsock:3:1"}]}',
        '{"guests": [{"id": "vm1", "address": "vsock:3:1"}, {"id": "vm1", "address": "vsock:4:1"}]}',
        '{"guests": [{"id": "vm1", "address": "vsock:7:1"}]}',
    ],
)
def test_a_damaged_file_stops_the_start_and_is_left_as_it_is(file: Path, text: str) -> None:
    file.write_text(text)
    directory = Directory()
    directory.add(GuestEntry("other", VsockAddress(7, 1)))
    with pytest.raises(SettingsError, match=str(file)):
        RegisteredGuests(file, directory, allow_plaintext=False).load()
    assert file.read_text() == text


def test_a_registered_guest_with_tls_is_refused_because_the_next_change_would_forget_it(file: Path, tmp_path: Path) -> None:
    authority = tmp_path / "authority"
    trustme.CA().cert_pem.write_to_path(str(authority))
    tls = {"authorities": str(authority), "name": "vm1"}
    file.write_text(json.dumps({"guests": [{"id": "vm1", "address": "192.0.2.1:8000", "tls": tls}]}))
    registered = RegisteredGuests(file, Directory(), allow_plaintext=False)
    with pytest.raises(SettingsError, match=r"guests\[0\]\.tls: a registered guest has none"):
        registered.load()


def test_a_state_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    registered = RegisteredGuests(tmp_path, Directory(), allow_plaintext=False)
    with pytest.raises(SettingsError, match=f"{tmp_path}: cannot be read: Is a directory"):
        registered.load()


@pytest.mark.parametrize("writable", [True, False])
async def test_a_caller_who_leaves_while_its_change_is_written_leaves_directory_and_file_alike(
    tmp_path: Path, writable: bool
) -> None:
    file = tmp_path / ("registered.json" if writable else "nowhere/registered.json")
    directory = Directory()
    registered = RegisteredGuests(file, directory, allow_plaintext=False)
    leaving = asyncio.create_task(registered.register(GuestEntry("vm1", VsockAddress(3, 1))))
    await turns()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert (directory.get("vm1") is not None) is writable
    assert file.exists() is writable


async def test_a_vmm_in_a_loop_does_not_fill_the_disk(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vmm_proxy.directory.registered.REGISTERED_LIMIT", 1)
    registered = RegisteredGuests(file, Directory(), allow_plaintext=False)
    await registered.register(GuestEntry("vm1", VsockAddress(3, 1)))
    with pytest.raises(TooManyError, match="guest vm2: 1 guests are registered already"):
        await registered.register(GuestEntry("vm2", VsockAddress(4, 1)))
    await registered.deregister("vm1")
    await registered.register(GuestEntry("vm2", VsockAddress(4, 1)))


def test_a_pipe_in_place_of_the_file_stops_the_start_and_is_not_waited_for(file: Path) -> None:
    os.mkfifo(file)
    loading = f"RegisteredGuests(Path({str(file)!r}), Directory(), allow_plaintext=False).load()"
    code = f"from pathlib import Path\nfrom vmm_proxy.app import Directory, RegisteredGuests\n{loading}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert ended.stderr.splitlines()[-1].endswith("is no regular file")


async def gone(file: Path) -> None:
    """Returns when `file` is removed, which a proxy does as soon as it listens."""
    await eventually(lambda: not file.exists())


async def test_what_a_killed_proxy_was_writing_is_removed_by_the_next_one_and_nothing_else(sockets: Path) -> None:
    config = sockets / "proxy.toml"
    config.write_text(f"[grpc]\nlisten = ['unix:{sockets}/proxy']\n[directory]\nregistered_file = '{sockets}/registered.json'\n")
    whole = '{"guests": [{"id": "vm1", "address": "vsock:3:1"}]}'
    (sockets / "registered.json").write_text(whole)
    half_written = sockets / ".registered.json.q1w2e3r4.new"
    half_written.write_text('{"guests": [{"id": "v')
    others = [sockets / name for name in (".registered.json.swp", "registered.json.new", ".other.json.q1w2e3r4.new")]
    for other in others:
        other.write_text("somebody's")
    async with processes.serving("--config", str(config)):
        await gone(half_written)
        # While a proxy runs there, another is refused, and touches nothing.
        half_written.write_text("being written")
        status, _, err = await processes.run("serve", "--http", "off", "--config", str(config))
        assert (status, "another server holds it" in err) == (1, True)
        assert half_written.exists()
    async with processes.serving("--config", str(config)):
        await gone(half_written)
    assert all(other.read_text() == "somebody's" for other in others)
    assert (sockets / "registered.json").read_text() == whole


async def test_sources_join_in_a_process_and_registered_guests_outlive_a_kill(sockets: Path) -> None:
    folder = sockets / "guests.d"
    folder.mkdir()
    (folder / "a.toml").write_text("id = 'from-folder'\naddress = 'vsock:3:1'\nstate = 'stopped'\n")
    (folder / "b.toml").write_text("nonsense")
    config = sockets / "proxy.toml"
    config.write_text(
        f"[grpc]\nlisten = ['unix:{sockets}/proxy']\n[directory]\ndir = '{folder}'\nregistered_file = '{sockets}/registered.json'\n"
        "[[guest]]\nid = 'from-config'\naddress = 'vsock:4:1'\nstate = 'stopped'\n"
    )
    local = [("grpc.default_authority", "localhost")]
    async with processes.serving("--config", str(config), "--guest", "from-flag=unix:/nobody") as proxy:
        async with grpc.aio.insecure_channel(f"unix:{sockets}/proxy", options=local) as channel:
            await fleet_pb2_grpc.DirectoryServiceStub(channel).RegisterGuest(
                fleet_pb2.RegisterGuestRequest(guest=FULL), timeout=5
            )
        proxy.process.kill()
        _, _, err = await proxy.end()
        assert "b.toml: not TOML" in err
    async with (
        processes.serving("--config", str(config)),
        grpc.aio.insecure_channel(f"unix:{sockets}/proxy", options=local) as channel,
    ):
        answer = await fleet_pb2_grpc.FleetServiceStub(channel).ListGuests(fleet_pb2.ListGuestsRequest(), timeout=5)
        assert [guest.id for guest in answer.guests] == ["from-config", "from-folder", "vm1"]
    status, _, err = await processes.run("check-config", "--config", str(config))
    assert status == 2
    assert "b.toml: not TOML" in err
