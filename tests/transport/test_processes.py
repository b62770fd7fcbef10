"""Real server processes: what stops them, what they refuse, and what they leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import h2.config
import h2.connection
import h2.settings
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from guest_transport.addresses import parse_address
from guest_transport.options import channel_options
from tests.transport.processes import ServerProcess, server_process

# The promise of both servers' doors.
STOP_SECONDS = 5.0
SIGNALS = [signal.SIGTERM, signal.SIGINT]


def _channel(target: str) -> grpc.aio.Channel:
    address = parse_address(target)
    assert hasattr(address, "grpc_target")
    return grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address))


async def _status(to: str | grpc.aio.Channel) -> int:
    async with _channel(to) if isinstance(to, str) else to as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    return int(answer.status)


@contextlib.asynccontextmanager
async def _call_in_flight(server: ServerProcess, target: str) -> AsyncIterator[grpc.aio.UnaryUnaryCall[bytes, bytes]]:
    async with _channel(target) as channel:
        wait: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test.Door/Wait")
        call = wait(b"hello", timeout=30)
        assert await server.line() == "called"
        yield call


@pytest.mark.parametrize("number", SIGNALS)
async def test_a_call_in_flight_completes_after_a_signal_and_health_says_so_first(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "s"
    async with server_process(f"unix:{path}") as server:
        await server.serving()
        async with _call_in_flight(server, f"unix:{path}") as call, _channel(f"unix:{path}") as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="test.Door"), timeout=30)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            server.send(number)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert await watch.read() is grpc.aio.EOF
            assert not call.done()
            server.answer_calls()
            assert await call == b"hello"
        status, lines = await server.ended()
    assert status == 0, lines
    assert list(tmp_path.iterdir()) == []


async def test_further_signals_cut_no_call_short(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/s"
    async with server_process("--late", target) as server:
        await server.serving()
        # Nobody listens for it in this server, as in one that has not come so far yet.
        server.send(signal.SIGHUP)
        async with _call_in_flight(server, target) as call, _channel(target) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=30)
            await watch.read()
            server.send(signal.SIGTERM)
            await watch.read()
            server.send(signal.SIGHUP)
            server.send(signal.SIGTERM)
            server.send(signal.SIGINT)
            server.answer_calls()
            assert await call == b"hello"
            server.send(signal.SIGINT)
        assert (await server.ended())[0] == 0


async def test_clients_that_hold_on_do_not_hold_up_the_stop(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/s"
    async with server_process(target, "127.0.0.1:0") as server:
        await server.serving()
        tcp = server.addresses[1]
        with socket.create_connection(("127.0.0.1", int(tcp.rpartition(":")[2]))), socket.socket(socket.AF_UNIX) as silent:
            silent.connect(str(tmp_path / "s"))
            async with _call_in_flight(server, target) as call, _channel(tcp) as idle:
                await idle.channel_ready()
                begin = time.monotonic()
                server.send(signal.SIGTERM)
                status, lines = await server.ended()
                assert time.monotonic() - begin < STOP_SECONDS
                assert status == 0, lines
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await call
                assert failed.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    assert list(tmp_path.iterdir()) == []


async def test_a_watcher_that_never_reads_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/s"
    async with server_process(target) as server:
        await server.serving()
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        client.local_settings = h2.settings.Settings(
            client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0}
        )
        client.initiate_connection()
        path = "/grpc.health.v1.Health/Watch"
        headers = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "localhost"), ("te", "trailers")]
        client.send_headers(1, [*headers, ("content-type", "application/grpc")])
        client.send_data(1, b"\0\0\0\0\0", end_stream=True)
        writer.write(client.data_to_send())
        # The answer's headers come, its data cannot: the window is 0.
        while not any(type(event).__name__ == "ResponseReceived" for event in client.receive_data(await reader.read(65536))):
            writer.write(client.data_to_send())
        begin = time.monotonic()
        server.send(signal.SIGTERM)
        status, lines = await server.ended()
        assert time.monotonic() - begin < STOP_SECONDS
        assert status == 0, lines
        writer.close()


async def test_a_second_server_on_a_live_socket_is_refused_and_the_first_stays_reachable(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/s"
    async with server_process(target) as first:
        await first.serving()
        async with server_process(target) as second:
            assert await second.ended() == (
                1,
                [f"{target}: cannot listen: another server holds it; stop that one or choose another path"],
            )
        assert await _status(target) == health_pb2.HealthCheckResponse.SERVING


async def test_after_kill_9_a_new_server_starts_with_no_clean_up_by_hand(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/s"
    async with server_process(target) as first:
        await first.serving()
        first.send(signal.SIGKILL)
        assert (await first.ended())[0] == -signal.SIGKILL
    assert (tmp_path / "s").is_socket()
    async with server_process(target) as second:
        await second.serving()
        assert await _status(target) == health_pb2.HealthCheckResponse.SERVING


async def test_of_two_servers_starting_at_once_exactly_one_serves(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/s"
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(server_process(target)) for _ in range(3)]
        said = await asyncio.gather(*(server.line() for server in servers))
        assert sorted(said) == ["", "", f"serving {target}"]
        assert await _status(target) == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_taken_port_ends_the_start_with_one_line_that_names_it(tmp_path: Path, host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        async with server_process(f"unix:{tmp_path}/s", f"{host}:{port}") as server:
            assert await server.ended() == (1, [f"{host}:{port}: cannot listen: port {port}: Address already in use"])
    assert list(tmp_path.iterdir()) == []


async def test_two_servers_never_share_a_port() -> None:
    async with server_process("127.0.0.1:0") as first:
        await first.serving()
        [address] = first.addresses
        async with server_process(address) as second:
            status, lines = await second.ended()
        assert status == 1
        assert lines == [f"{address}: cannot listen: port {address.rpartition(':')[2]}: Address already in use"]


async def test_with_umask_0_the_socket_has_its_mode_and_no_more(tmp_path: Path) -> None:
    async with server_process(f"unix:{tmp_path}/s", umask=0) as server:
        await server.serving()
        assert os.stat(tmp_path / "s").st_mode & 0o777 == 0o660
        assert os.stat(tmp_path / "s.lock").st_mode & 0o777 == 0o600


async def test_a_bug_is_a_traceback_in_the_log_and_exit_1() -> None:
    async with server_process("--bug") as server:
        status, lines = await server.ended()
    assert status == 1
    [line] = lines
    assert "stopped by a bug" in line
    assert "LookupError: a bug" in line


async def test_what_cannot_stop_is_left_within_the_bound(tmp_path: Path) -> None:
    async with server_process("--stuck", f"unix:{tmp_path}/s") as server:
        await server.serving()
        begin = time.monotonic()
        server.send(signal.SIGTERM)
        status, lines = await server.ended()
        assert time.monotonic() - begin < STOP_SECONDS
        assert status == 1
        assert "still not stopped after 4.5 s" in lines[-1]


async def test_a_signal_is_a_clean_stop_also_where_no_thread_can_be_started(tmp_path: Path) -> None:
    async with server_process("--no-threads", f"unix:{tmp_path}/s") as server:
        await server.serving()
        server.send(signal.SIGTERM)
        status, lines = await server.ended()
        assert status == 0, lines
