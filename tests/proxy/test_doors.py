"""The command `vmm-proxy` as an operator meets it: flags, files, exit statuses, signals."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from tests.eventually import eventually
from tests.proxy import processes
from tests.proxy.raw_guest import Stream, raw_guest

CONFIG = """
[grpc]
listen = ["unix:{folder}/proxy"]

[[guest]]
id = "vm1"
address = "unix:{folder}/guest"
labels = {{ rack = "r7" }}

[[guest]]
id = "vm2"
address = "vsock:7:8000"
state = "stopped"
instance_id = "00ff"
"""


async def no_gpu(stream: Stream) -> None:
    await stream.answer(b"")


async def silence(stream: Stream) -> None:
    await stream.reset.wait()


async def test_a_call_in_flight_is_finished_after_sigterm_while_health_says_not_serving(sockets: Path) -> None:
    hold = asyncio.Event()

    async def when_told(stream: Stream) -> None:
        await hold.wait()
        await stream.answer(b"")

    address = f"unix:{sockets}/proxy"
    async with (
        raw_guest(str(sockets / "guest"), when_told) as guest,
        processes.serving("--grpc", address, "--guest", f"vm1={guest.address}") as proxy,
        grpc.aio.insecure_channel(address, options=[("grpc.default_authority", "localhost")]) as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="guest_api.ProxiedGuestApi"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        call = guest_api_pb2_grpc.ProxiedGuestApiStub(channel).GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=10)
        await asyncio.wait_for(guest.called.wait(), 5)
        proxy.process.send_signal(signal.SIGTERM)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        hold.set()
        assert await call == guest_api_pb2.GpuInfoResponse()
        watch.cancel()
        status, out, _ = await proxy.end()
        assert (status, out) == (0, "")
        assert not (sockets / "proxy").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_within_five_seconds_though_a_guest_hangs_and_a_watcher_holds_on(
    sockets: Path, number: int
) -> None:
    address = f"unix:{sockets}/proxy"
    async with (
        raw_guest(str(sockets / "guest"), silence) as guest,
        processes.serving("--grpc", address, "--guest", f"vm1={guest.address}") as proxy,
        grpc.aio.insecure_channel(address, options=[("grpc.default_authority", "localhost")]) as channel,
    ):
        watch = fleet_pb2_grpc.FleetServiceStub(channel).WatchGpuInfo(fleet_pb2.WatchGpuInfoRequest())
        call = guest_api_pb2_grpc.ProxiedGuestApiStub(channel).Shutdown(guest_api_pb2.Id(id="vm1"), timeout=30)
        await eventually(lambda: len(guest.requests) >= 2)
        started = time.monotonic()
        status, out, err = await proxy.stop(number)
        assert time.monotonic() - started < 5
        assert (status, out) == (0, "")
        assert "Traceback" not in err
        assert await watch.code() is grpc.StatusCode.UNAVAILABLE
        assert await call.code() is not grpc.StatusCode.OK


async def test_it_serves_what_the_file_says_with_health_and_reflection(sockets: Path) -> None:
    config = sockets / "proxy.toml"
    config.write_text(CONFIG.format(folder=sockets))
    async with (
        raw_guest(str(sockets / "guest"), no_gpu),
        processes.serving("--config", str(config), "--log-format", "json") as proxy,
        grpc.aio.insecure_channel(f"unix:{sockets}/proxy", options=[("grpc.default_authority", "localhost")]) as channel,
    ):
        assert json.loads(proxy.lines[-1])["message"] == f"listening on unix:{sockets}/proxy"
        assert (sockets / "proxy").stat().st_mode & 0o777 == 0o660
        api = guest_api_pb2_grpc.ProxiedGuestApiStub(channel)
        assert await api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=5) == guest_api_pb2.GpuInfoResponse()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await api.GpuInfo(guest_api_pb2.Id(id="vm2"), timeout=5)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "guest_api.ProxiedGuestApi", "guest_fleet.v1.FleetService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        stream = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        names = {service.name async for answer in stream for service in answer.list_services_response.service}
        assert {"guest_api.ProxiedGuestApi", "guest_fleet.v1.FleetService", "grpc.health.v1.Health"} <= names
        no_such: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/guest_api.ProxiedGuestApi/NoSuchMethod")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await no_such(b"", timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_what_a_hostile_guest_sends_never_reaches_the_log_raw(sockets: Path) -> None:
    async def hostile(stream: Stream) -> None:
        stream.connection.h2.close_connection(11, additional_data=b"\x1b[2Jforged\nline")
        await stream.connection.flush()
        stream.connection.writer.close()

    address = f"unix:{sockets}/proxy"
    async with (
        raw_guest(str(sockets / "guest"), hostile) as guest,
        processes.serving("--grpc", address, "--guest", f"vm1={guest.address}") as proxy,
        grpc.aio.insecure_channel(address, options=[("grpc.default_authority", "localhost")]) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError):
            await guest_api_pb2_grpc.ProxiedGuestApiStub(channel).GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=5)
        _, _, err = await proxy.stop()
        assert "forged" not in err
        assert "\x1b" not in err
        assert all(" vmm_proxy." in line or " guest_transport." in line for line in err.splitlines()), err


async def test_a_low_soft_limit_of_descriptors_does_not_limit_the_guests(sockets: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        async with processes.serving("--grpc", f"unix:{sockets}/proxy") as proxy:
            assert resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE)[0] == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_second_proxy_on_one_socket_is_refused_in_one_line(sockets: Path) -> None:
    address = f"unix:{sockets}/proxy"
    async with processes.serving("--grpc", address):
        status, out, err = await processes.run("serve", "--grpc", address)
        assert (status, out) == (1, "")
        assert err.count("\n") == 1
        assert address in err


async def test_a_taken_port_is_refused_in_one_line_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, out, err = await processes.run("serve", "--grpc", address)
        assert (status, out) == (1, "")
        assert err.count("\n") == 1
        assert address in err


async def test_check_config_says_ok_and_serves_nothing(sockets: Path) -> None:
    config = sockets / "proxy.toml"
    config.write_text(CONFIG.format(folder=sockets))
    status, out, err = await processes.run("check-config", "--config", str(config))
    assert (status, err) == (0, "")
    assert out == f"{config}: ok, 2 guests, gRPC on unix:{sockets}/proxy, pages on 127.0.0.1:9880\n"
    assert not (sockets / "proxy").exists()


async def test_check_config_counts_the_guests_of_the_folder_too(sockets: Path) -> None:
    (sockets / "guests.d").mkdir()
    (sockets / "guests.d/vm3.toml").write_text('id = "vm3"\naddress = "vsock:9:8000"\n')
    config = sockets / "proxy.toml"
    config.write_text(CONFIG.format(folder=sockets) + f'[http]\nlisten = "off"\n[directory]\ndir = "{sockets}/guests.d"\n')
    status, out, err = await processes.run("check-config", "--config", str(config))
    assert (status, err) == (0, "")
    assert out == f"{config}: ok, 3 guests, gRPC on unix:{sockets}/proxy, pages on no address\n"
    (sockets / "guests.d/vm4.toml").write_text('id = "vm4"\naddress = "nonsense"\n')
    status, out, err = await processes.run("check-config", "--config", str(config))
    assert (status, out, err.count("\n")) == (2, "", 1), "each file that is refused is one line, told once"
    assert err.startswith(f"{sockets}/guests.d/vm4.toml: address: 'nonsense'")


async def test_the_example_configuration_is_accepted() -> None:
    status, _, err = await processes.run("check-config", "--config", "deploy/vmm-proxy.example.toml")
    assert (status, err) == (0, "")


@pytest.mark.parametrize("command", ["serve", "check-config"])
async def test_a_refused_configuration_ends_with_status_2_and_one_line(sockets: Path, command: str) -> None:
    config = sockets / "proxy.toml"
    config.write_text("[grpc]\nlisten = ['nonsense']\n")
    status, out, err = await processes.run(command, "--config", str(config))
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith(f"{config}: grpc.listen: ")


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["check-config", "--help"], ["--version"]])
async def test_help_and_version_go_to_stdout(arguments: list[str]) -> None:
    status, out, err = await processes.run(*arguments)
    assert (status, err) == (0, "")
    assert out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(["serve", "--no-such-flag"], "--no-such-flag"), (["check-config"], "--config"), (["non\nsense"], "non\\nsense")],
)
async def test_misuse_ends_with_status_2_and_one_line_that_names_it(arguments: list[str], word: str) -> None:
    status, out, err = await processes.run(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("vmm-proxy: ")
    assert word in err


async def test_no_command_at_all_shows_them_whole_on_stderr_with_status_2() -> None:
    status, out, err = await processes.run()
    assert (status, out) == (2, "")
    for door in ("serve", "check-config", "hash-token"):
        assert f"  {door} " in err
    assert "..." not in err.partition("Commands:")[2]
