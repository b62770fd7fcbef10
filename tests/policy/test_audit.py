"""The audit log: a line before and after each change, and no change without the line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeAlias

import grpc
import pytest

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from guest_transport.errors import SettingsError
from tests.eventually import eventually
from tests.policy.callers import bearer
from tests.policy.two_tenants import asked, code_of, fleet_of_two, no_gpu
from tests.proxy import processes
from tests.proxy.raw_guest import RawGuest, Stream, raw_guest
from tests.proxy.running import Proxy
from tests.umask import umask
from vmm_proxy.policy.audit_log import TEXT_LIMIT_BYTES, Audit, AuditError
from vmm_proxy.policy.audit_trail import AuditTrail
from vmm_proxy.policy.rate_limit import RateLimit
from vmm_proxy.policy.roles import Caller, Grant, Role

MIDNIGHT = 1_790_000_000.0
SHUTDOWN = "/guest_api.ProxiedGuestApi/Shutdown"


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@contextlib.asynccontextmanager
async def audit_in(file: Path) -> AsyncIterator[Audit]:
    audit = Audit(file, lambda: MIDNIGHT)
    await asyncio.to_thread(audit.open)
    try:
        yield audit
    finally:
        await audit.close()


@contextlib.asynccontextmanager
async def two_tenants_with_audit(folder: Path) -> AsyncIterator[tuple[Proxy, RawGuest, RawGuest]]:
    # The proxy closes it.
    audit = Audit(folder / "audit", lambda: MIDNIGHT)
    await asyncio.to_thread(audit.open)
    async with fleet_of_two(folder, audit=audit) as parts:
        yield parts


async def test_a_shutdown_is_announced_before_the_guest_hears_of_it_and_its_outcome_follows(sockets: Path) -> None:
    seen: list[list[dict[str, object]]] = []

    async def note(stream: Stream) -> None:
        seen.append(lines(sockets / "audit"))
        await stream.answer(b"")

    async with two_tenants_with_audit(sockets) as (proxy, blue, _):
        blue.behaviour = note
        assert await code_of(asked(proxy, "Shutdown", "blue1", bearer("blue-operator"))) is grpc.StatusCode.OK
        assert [line["event"] for line in seen[0]] == ["asked"]
        announced, done = lines(sockets / "audit")
        assert announced == {
            "time": "2026-09-21T14:13:20.000Z",
            "event": "asked",
            "call": announced["call"],
            "who": "token blue-operator",
            "role": "operator",
            "method": SHUTDOWN,
            "guest": "blue1",
        }
        assert done == announced | {"event": "done", "outcome": "OK", "text": ""}


async def test_how_it_ended_is_told_for_each_way_of_ending(sockets: Path) -> None:
    held = asyncio.Event()

    async def hold(stream: Stream) -> None:
        held.set()
        await stream.reset.wait()

    async def object_to_it(stream: Stream) -> None:
        await stream.fail("9", "not\r\nnow")

    async with two_tenants_with_audit(sockets) as (proxy, blue, _):
        blue.behaviour = object_to_it
        await code_of(asked(proxy, "Shutdown", "blue1", bearer("operator")))
        await code_of(asked(proxy, "Shutdown", "none", bearer("operator")))
        await code_of(asked(proxy, "Shutdown", "red1", bearer("viewer")))
        await code_of(asked(proxy, "Shutdown", "red1", (("authorization", "Bearer wrong"),)))
        blue.behaviour = hold
        call = asyncio.ensure_future(asked(proxy, "Shutdown", "blue1", bearer("operator")))
        await asyncio.wait_for(held.wait(), 10)
        call.cancel()

        def of_ends() -> list[dict[str, object]]:
            return [line for line in lines(sockets / "audit") if line["event"] != "asked"]

        await eventually(lambda: len(of_ends()) >= 5)
        ended = of_ends()
    told = [(line["event"], line["who"], line["guest"], line["outcome"], line["text"]) for line in ended]
    root = f"unix uid {os.getuid()} gid {os.getgid()} pid {os.getpid()}"
    assert told == [
        ("done", "token operator", "blue1", "FAILED_PRECONDITION", "guest blue1: not  now"),
        ("done", "token operator", "none", "NOT_FOUND", "guest none: not known to this proxy"),
        ("refused", "token viewer", "red1", "PERMISSION_DENIED", "this call needs the role operator"),
        ("refused", root, "red1", "UNAUTHENTICATED", "authorization: must be one bearer token"),
        ("done", "token operator", "blue1", "CANCELLED", "the caller left"),
    ]


async def test_changes_of_the_directory_are_told_with_what_was_changed_and_reading_is_not(sockets: Path) -> None:
    async with two_tenants_with_audit(sockets) as (proxy, *_):
        directory = fleet_pb2_grpc.DirectoryServiceStub(proxy.channel)
        entry = fleet_pb2.GuestEntry(id="vm9", address="vsock:9:1", labels={"tenant": "red"})
        await directory.RegisterGuest(fleet_pb2.RegisterGuestRequest(guest=entry), timeout=10)
        await code_of(directory.RegisterGuest(fleet_pb2.RegisterGuestRequest(guest=entry), timeout=10))
        await directory.DeregisterGuest(fleet_pb2.DeregisterGuestRequest(id="vm9"), timeout=10)
        await proxy.gpu_info("red1")
        await proxy.fleet.ListGuests(fleet_pb2.ListGuestsRequest(), timeout=10)
    change = {"id": "vm9", "address": "vsock:9:1", "labels": {"tenant": "red"}}
    told = [
        (str(line["method"]).rpartition("/")[2], line["event"], line.get("change"), line.get("outcome"))
        for line in lines(sockets / "audit")
    ]
    assert told == [
        ("RegisterGuest", "asked", change, None),
        ("RegisterGuest", "done", change, "OK"),
        ("RegisterGuest", "asked", change, None),
        ("RegisterGuest", "done", change, "ALREADY_EXISTS"),
        ("DeregisterGuest", "asked", None, None),
        ("DeregisterGuest", "done", None, "OK"),
    ]


async def test_without_a_file_the_lines_are_in_the_proxys_log(sockets: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with fleet_of_two(sockets) as (proxy, *_):
        await code_of(asked(proxy, "Shutdown", "blue1", bearer("operator")))
    told = [
        json.loads(record.getMessage().removeprefix("audit: "))
        for record in caplog.records
        if record.name == "vmm_proxy.policy.audit_log"
    ]
    assert [(line["event"], line["who"], line["guest"]) for line in told] == [
        ("asked", "token operator", "blue1"),
        ("done", "token operator", "blue1"),
    ]


async def test_the_file_is_for_the_proxys_group_whatever_the_umask_and_an_older_one_keeps_its_mode_and_lines(
    tmp_path: Path,
) -> None:
    file = tmp_path / "audit"
    with umask(0o077):
        async with audit_in(file) as audit:
            await audit.write({"event": "one"})
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    file.chmod(0o600)
    async with audit_in(file) as audit:
        await audit.write({"event": "two"})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [line["event"] for line in lines(file)] == ["one", "two"]


@pytest.mark.parametrize("spoil", ["folder", "fifo", "link", "missing"])
def test_what_is_no_file_of_ours_is_refused_at_the_start_in_one_line(tmp_path: Path, spoil: str) -> None:
    file = tmp_path / "audit"
    match spoil:
        case "folder":
            file.mkdir()
        case "fifo":
            os.mkfifo(file)
        case "link":
            file.symlink_to(tmp_path / "other")
        case "missing":
            file = tmp_path / "no" / "audit"
    audit = Audit(file, lambda: 0.0)
    with pytest.raises(SettingsError, match=r"^audit\.file: .*audit: [^\n]+$"):
        audit.open()


async def test_text_of_others_neither_breaks_the_line_nor_fills_the_disk(tmp_path: Path) -> None:
    file = tmp_path / "audit"
    async with audit_in(file) as audit:
        await audit.write({"event": "x", "text": 'a\n{"event":"forged"}\r\u2028\x1b[2J' + "y" * 100_000})
    (line,) = lines(file)
    assert len(str(line["text"])) == TEXT_LIMIT_BYTES
    assert len(file.read_bytes()) < 2 * TEXT_LIMIT_BYTES


async def test_an_entry_of_any_size_costs_a_line_of_bounded_size(tmp_path: Path) -> None:
    entry = fleet_pb2.GuestEntry(id="i" * 60_000, labels={str(n): "x" * 100 for n in range(600)})
    async with audit_in(tmp_path / "audit") as audit:
        trail = AuditTrail(audit, lambda: 0.0)
        await trail.ask("/m", Caller("c", (Grant(Role.ADMIN),)), fleet_pb2.RegisterGuestRequest(guest=entry))
    assert len((tmp_path / "audit").read_bytes()) < 10_000


async def test_a_line_that_was_torn_off_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / "audit"
    file.write_text('{"event": "torn o')
    async with audit_in(file) as audit:
        await audit.write({"event": "next"})
    torn, whole = file.read_text().splitlines()
    assert json.loads(whole)["event"] == "next"
    assert torn == '{"event": "torn o'


def test_refusals_are_bounded_and_what_was_left_out_is_counted() -> None:
    now = 0.0
    refusals = RateLimit(lambda: now, limit=2)
    assert [refusals.take() for _ in range(5)] == [0, 0, None, None, None]
    now = 59.9
    assert refusals.take() is None
    now = 60.0
    assert [refusals.take() for _ in range(3)] == [4, 0, None]


async def test_a_caller_who_is_refused_in_a_loop_fills_no_disk(sockets: Path) -> None:
    async with two_tenants_with_audit(sockets) as (proxy, *_):
        for _ in range(100):
            await code_of(asked(proxy, "Shutdown", "red1", bearer("viewer")))
    assert len(lines(sockets / "audit")) == 60


async def test_a_note_that_cannot_be_written_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(tmp_path / "audit", lambda: MIDNIGHT)
    await audit.note({"event": "wrong guest", "guest": "vm1"})
    with pytest.raises(AuditError):
        await audit.write({"event": "x"})
    await audit.close()
    assert "the audit log is not written (the file is not open)" in caplog.text
    assert '"guest": "vm1"' in caplog.text


# In quotes: the asynchronous stub is a type only.
Audited: TypeAlias = "tuple[processes.ProxyProcess, guest_api_pb2_grpc.ProxiedGuestApiAsyncStub, RawGuest]"


@contextlib.asynccontextmanager
async def audited_process(folder: Path) -> AsyncIterator[Audited]:
    """`vmm-proxy serve` with an audit file, a guest and a stub to call it."""
    config = folder / "proxy.toml"
    config.write_text(f"[grpc]\nlisten = ['unix:{folder}/proxy']\n[audit]\nfile = '{folder}/audit'\n")
    async with (
        raw_guest(str(folder / "g"), no_gpu) as guest,
        processes.serving("--config", str(config), "--guest", f"vm1={guest.address}") as proxy,
        grpc.aio.insecure_channel(f"unix:{folder}/proxy", options=[("grpc.default_authority", "localhost")]) as channel,
    ):
        yield proxy, guest_api_pb2_grpc.ProxiedGuestApiStub(channel), guest


async def test_on_a_full_disk_no_guest_is_shut_down_and_reading_goes_on(sockets: Path) -> None:
    async with audited_process(sockets) as (proxy, api, guest):
        request = guest_api_pb2.Id(id="vm1")
        await api.Shutdown(request, timeout=10)
        size = (sockets / "audit").stat().st_size
        full = size + 20
        # What a full disk does to a file: the first bytes of a line fit, the rest does not.
        resource.prlimit(proxy.process.pid, resource.RLIMIT_FSIZE, (full, resource.RLIM_INFINITY))
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await api.Shutdown(request, timeout=10)
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "the audit log cannot be written" in (refused.value.details() or "")
            assert str(sockets) not in (refused.value.details() or "")
        await api.GpuInfo(request, timeout=10)
        assert [stream.path.rpartition("/")[2] for stream in guest.requests] == ["Shutdown", "GpuInfo"]
        resource.prlimit(proxy.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await api.Shutdown(request, timeout=10)
        events = []
        for line in (sockets / "audit").read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                events.append(json.loads(line)["event"])
        assert events == ["asked", "done", "asked", "done"], "the torn line spoils no other"
        assert (await proxy.stop())[0] == 0


async def test_after_a_rotation_a_hangup_opens_the_file_anew_and_no_line_is_lost(sockets: Path) -> None:
    async with audited_process(sockets) as (proxy, api, _):
        request = guest_api_pb2.Id(id="vm1")
        await api.Shutdown(request, timeout=10)
        (sockets / "audit").rename(sockets / "audit.1")
        await api.Shutdown(request, timeout=10)
        proxy.process.send_signal(signal.SIGHUP)
        assert proxy.process.stderr is not None
        while "configuration reloaded" not in (await asyncio.wait_for(proxy.process.stderr.readline(), 10)).decode():
            pass
        await api.Shutdown(request, timeout=10)
        assert [line["event"] for line in lines(sockets / "audit.1")] == ["asked", "done"] * 2
        assert [line["event"] for line in lines(sockets / "audit")] == ["asked", "done"]


async def test_a_file_that_cannot_be_written_stops_the_start_with_one_line(sockets: Path) -> None:
    config = sockets / "proxy.toml"
    config.write_text(f"[grpc]\nlisten = ['unix:{sockets}/proxy']\n[audit]\nfile = '{sockets}/no/audit'\n")
    status, out, err = await processes.run("serve", "--config", str(config))
    assert (status, out) == (2, "")
    assert err == f"audit.file: {sockets}/no/audit: cannot be written: No such file or directory\n"
    assert not (sockets / "proxy").exists()
