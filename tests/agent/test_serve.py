"""`guest-service serve` as a real process: what it serves, how it starts, reloads, refuses and ends."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from google.protobuf import empty_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from tests.agent.agent import GUEST_SERVICE, refused, running_agent
from tests.host_facts.machine import make_procfs

EMPTY = empty_pb2.Empty()
# One card whose first query never returns.
HANGING = '[[card]]\nuuid = "GPU-00000000-0000-0000-0000-000000000001"\n[card.fail]\ndevice = "hang"\n'


@contextmanager
def dialled(target: str) -> Iterator[grpc.Channel]:
    options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(target, options) as channel:
        yield channel


def stub_of(channel: grpc.Channel) -> guest_api_pb2_grpc.GuestApiStub:
    return guest_api_pb2_grpc.GuestApiStub(channel)


def status_of_page(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return int(refusal.code)


@pytest.fixture
def door(short_path: Path) -> str:
    return f"unix:{short_path}/g.sock"


def test_an_agent_with_a_simulated_card_answers_every_method(door: str) -> None:
    with running_agent("--simulate", "h200", "--grpc", door, "--http", "off") as agent, dialled(door) as channel:
        stub = stub_of(channel)
        gpus = stub.GpuInfo(EMPTY, timeout=20)
        assert (len(gpus.gpus), gpus.error, gpus.cc_enabled, gpus.cc_ready) == (1, "", True, True)
        assert gpus.HasField("sample_age_ms")
        assert gpus.gpus[0].memory_total_bytes == 150754820096
        assert stub.SysInfo(EMPTY, timeout=20).kernel_version == os.uname().release
        assert stub.Info(EMPTY, timeout=20).version
        assert stub.NetworkInfo(EMPTY, timeout=20) is not None
        assert stub.ListContainers(EMPTY, timeout=20) is not None
        methods = guest_api_pb2.DESCRIPTOR.services_by_name["GuestApi"].methods
        assert {m.name for m in methods} == {"GpuInfo", "SysInfo", "Info", "NetworkInfo", "ListContainers", "Shutdown"}
        assert agent.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0_and_neither_socket_nor_child_nor_word_on_stdout(
    door: str, number: signal.Signals
) -> None:
    with running_agent("--simulate", "h200", "--grpc", door, "--http", "off") as agent:
        begun = time.monotonic()
        assert agent.end(number) == 0
        assert time.monotonic() - begun < 5
        assert not Path(door.removeprefix("unix:")).exists()
        assert agent.process.stdout is not None
        assert agent.process.stdout.read() == ""


def test_it_serves_on_every_address_that_it_is_told(door: str) -> None:
    with running_agent(
        "--simulate", "none", "--grpc", door, "--grpc", "127.0.0.1:0", "--grpc", "[::1]:0", "--http", "off"
    ) as agent:
        agent.log_line("listening on [::1]:")
        targets = [line.rpartition(" ")[2] for line in agent.lines if "listening on" in line]
        assert len(targets) == 3
        for target in targets:
            with dialled(target) as channel:
                assert stub_of(channel).GpuInfo(EMPTY, timeout=20).ByteSize() == 0


def test_health_and_reflection_know_the_api_also_without_a_card(door: str) -> None:
    with running_agent("--simulate", "none", "--grpc", door, "--http", "off"), dialled(door) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "guest_api.GuestApi"):
            assert health.Check(health_pb2.HealthCheckRequest(service=name), timeout=20).status == 1
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([ask]), timeout=20)
        assert "guest_api.GuestApi" in {service.name for service in answer.list_services_response.service}


def test_a_card_without_its_driver_is_unknown_in_the_fixed_words(door: str) -> None:
    with running_agent("--simulate", "no-driver", "--grpc", door, "--http", "off"), dialled(door) as channel:
        assert stub_of(channel).GpuInfo(EMPTY, timeout=20).error == "NVIDIA driver is not loaded"


def test_roots_of_proc_and_sys_are_where_the_flags_say(door: str, tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    flags = ["--procfs", str(make_procfs(tmp_path / "proc")), "--sysfs", str(tmp_path / "sys")]
    with running_agent(*flags, "--grpc", door, "--http", "off"), dialled(door) as channel:
        stub = stub_of(channel)
        assert stub.SysInfo(EMPTY, timeout=20).total_memory == 1000 * 1024
        assert stub.GpuInfo(EMPTY, timeout=20).ByteSize() == 0


def test_a_call_in_flight_at_sigterm_gets_its_sample(door: str, tmp_path: Path) -> None:
    rack = tmp_path / "slow.toml"
    rack.write_text('init_seconds = 0.4\n[[card]]\nuuid = "GPU-00000000-0000-0000-0000-000000000001"\n')
    with running_agent("--simulate", str(rack), "--grpc", door, "--http", "off") as agent, dialled(door) as channel:
        call = stub_of(channel).GpuInfo.future(EMPTY, timeout=20)
        grpc.channel_ready_future(channel).result(20)
        # Answered behind the first call on the same connection, so the first has arrived.
        stub_of(channel).Info(EMPTY, timeout=20)
        assert agent.end() == 0
        assert len(call.result(20).gpus) == 1


def test_a_collector_that_hangs_holds_up_neither_the_end_nor_the_waiting_caller(door: str, tmp_path: Path) -> None:
    rack = tmp_path / "hanging.toml"
    rack.write_text(HANGING)
    with running_agent("--simulate", str(rack), "--grpc", door, "--http", "off") as agent, dialled(door) as channel:
        call = stub_of(channel).GpuInfo.future(EMPTY, timeout=20)
        stub_of(channel).Info(EMPTY, timeout=20)
        (collector,) = agent.children()
        begun = time.monotonic()
        assert agent.end() == 0
        assert time.monotonic() - begun < 5
        assert call.result(20).error != ""
        assert not Path(f"/proc/{collector}").exists()


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_an_agent_that_is_killed_takes_its_hanging_collector_along(door: str, tmp_path: Path) -> None:
    rack = tmp_path / "hanging.toml"
    rack.write_text(HANGING)
    with running_agent("--simulate", str(rack), "--grpc", door, "--http", "off") as agent:
        (collector,) = agent.children()
        watch = os.pidfd_open(collector)
        try:
            # It sleeps once it hangs, and not before: its start is all work.
            deadline = time.monotonic() + 20
            while _state_of(collector) != "S" and time.monotonic() < deadline:
                os.sched_yield()
            assert agent.end(signal.SIGKILL) == -signal.SIGKILL
            assert select.select([watch], [], [], 20)[0] == [watch]
        finally:
            os.close(watch)


@pytest.mark.parametrize("kind", ["tcp", "unix", "http"])
def test_an_address_that_is_taken_is_status_1_and_one_line_that_names_it(kind: str, short_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        free = f"unix:{short_path}/free.sock"
        if kind == "unix":
            with running_agent("--simulate", "none", "--grpc", free, "--http", "off") as first:
                done, name = refused("serve", "--simulate", "none", "--grpc", free, "--http", "off"), free
                with dialled(free) as channel:
                    stub_of(channel).GpuInfo(EMPTY, timeout=20)
                assert first.end() == 0
        else:
            name = f"127.0.0.1:{port}"
            where = ["--grpc", name, "--http", "off"] if kind == "tcp" else ["--grpc", free, "--http", name]
            done = refused("serve", "--simulate", "none", *where)
    assert done.returncode == 1
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert name in last
    assert "cannot listen" in last
    assert "Traceback" not in done.stderr
    assert not (short_path / "free.sock").exists()


def test_a_wrong_identity_or_rack_is_status_2_before_anything_listens(door: str, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[identity]\nfile = "{tmp_path}/absent.toml"\n')
    done = refused("serve", "--config", str(config), "--grpc", door, "--http", "off")
    assert (done.returncode, done.stderr.count("\n"), "absent.toml" in done.stderr) == (2, 1, True)
    done = refused("serve", "--simulate", "h2000", "--grpc", door, "--http", "off")
    assert (done.returncode, done.stderr.count("\n"), "h200x8" in done.stderr) == (2, 1, True)


def test_hangup_takes_the_switches_and_a_wrong_file_changes_nothing(door: str, tmp_path: Path) -> None:
    config, identity = tmp_path / "config.toml", tmp_path / "identity.toml"
    identity.write_text('tcb_info = "{}"\n')
    rest = f'[http]\nlisten = "127.0.0.1:0"\npublic_sysinfo = SWITCH\npublic_tcbinfo = SWITCH\n[identity]\nfile = "{identity}"\n'
    config.write_text(rest.replace("SWITCH", "false"))
    with running_agent("--config", str(config), "--simulate", "none", "--grpc", door) as agent, dialled(door) as channel:
        page = f"http://{agent.http()}/metrics"

        def shown() -> tuple[int, str]:
            return status_of_page(page), stub_of(channel).Info(EMPTY, timeout=20).tcb_info

        assert shown() == (404, "")
        config.write_text(rest.replace("SWITCH", "true"))
        agent.process.send_signal(signal.SIGHUP)
        agent.log_line("configuration reloaded")
        assert shown() == (200, "{}")
        config.write_text("[http]\npublic_sysinfo = 3\n")
        agent.process.send_signal(signal.SIGHUP)
        assert "http.public_sysinfo" in agent.log_line("reload refused")
        assert shown() == (200, "{}")


def test_a_reload_says_that_what_it_cannot_take_waits_for_a_restart(door: str, short_path: Path) -> None:
    config = short_path / "config.toml"
    config.write_text("")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(short_path / "notify"))
        ear.settimeout(20)
        flags = ("--config", str(config), "--simulate", "none", "--grpc", door, "--http", "off")
        with running_agent(*flags, env={"NOTIFY_SOCKET": str(short_path / "notify")}) as agent:
            assert b"READY=1" in ear.recv(4096)
            warned = []
            for text in ("[http]\npublic_logs = true\n[log]\nlevel = 'debug'\n", "[host]\ndata_disks = ['/', '/srv']\n"):
                config.write_text(text)
                agent.process.send_signal(signal.SIGHUP)
                assert b"RELOADING=1" in ear.recv(4096)
                assert b"READY=1" in ear.recv(4096)
                warned.append(sum("needs a restart" in line for line in agent.lines))
            agent.log_line("needs a restart")
            assert warned[0] == 0
            assert agent.end() == 0


def test_shutdown_runs_the_configured_command_once(door: str, tmp_path: Path) -> None:
    fifo = tmp_path / "done"
    os.mkfifo(fifo)
    config = tmp_path / "config.toml"
    config.write_text(f'[power]\nshutdown_command = ["sh", "-c", "echo off >> {tmp_path}/count; echo > {fifo}; echo loud"]\n')
    with running_agent("--config", str(config), "--simulate", "none", "--grpc", door, "--http", "off") as agent:
        with dialled(door) as channel:
            for _ in range(3):
                stub_of(channel).Shutdown(EMPTY, timeout=20)
        fifo.read_text()
        agent.log_line("has run")
        assert agent.end() == 0
        assert (tmp_path / "count").read_text() == "off\n"
        assert agent.process.stdout is not None
        assert agent.process.stdout.read() == ""


def test_json_log_lines_are_json(door: str) -> None:
    with running_agent("--simulate", "none", "--grpc", door, "--http", "off", "--log-format", "json") as agent:
        assert agent.end() == 0
        messages = [json.loads(line)["message"] for line in agent.lines]
        assert f"listening on {door}" in messages


def test_the_service_manager_hears_of_start_reload_and_end(door: str, short_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(short_path / "notify"))
        ear.settimeout(20)
        environment = {"NOTIFY_SOCKET": str(short_path / "notify")}
        with running_agent("--simulate", "none", "--grpc", door, "--http", "off", env=environment) as agent:
            assert b"READY=1" in ear.recv(4096)
            agent.process.send_signal(signal.SIGHUP)
            assert b"RELOADING=1" in ear.recv(4096)
            assert b"READY=1" in ear.recv(4096)
            assert agent.end() == 0
            assert b"STOPPING=1" in ear.recv(4096)


def test_a_port_that_the_service_manager_opened_is_served(door: str) -> None:
    program = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); "
        "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1', LISTEN_FDNAMES='http'); os.execv(sys.argv[2], sys.argv[2:])"
    )
    with socket.create_server(("127.0.0.1", 0)) as opened:
        port = opened.getsockname()[1]

        async def main() -> int:
            arguments = [*GUEST_SERVICE, "serve", "--simulate", "none", "--grpc", door]
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                program,
                str(opened.fileno()),
                *arguments,
                pass_fds=[opened.fileno()],
                stderr=asyncio.subprocess.DEVNULL,
            )
            # The kernel has accepted the connection already; the answer comes once the agent serves.
            assert await asyncio.to_thread(status_of_page, f"http://127.0.0.1:{port}/healthz") == 200
            child.terminate()
            return await child.wait()

        assert asyncio.run(main()) == 0


def test_nothing_is_left_on_the_agent_between_samples(door: str) -> None:
    with running_agent("--simulate", "h200", "--grpc", door, "--http", "off") as agent, dialled(door) as channel:
        stub_of(channel).GpuInfo(EMPTY, timeout=20)
        assert agent.children() == []


def test_a_container_engine_that_is_named_and_not_there_is_unavailable_and_a_part_that_is_down(
    door: str, short_path: Path
) -> None:
    config = short_path / "config.toml"
    config.write_text('[http]\npublic_sysinfo = true\npublic_containers = true\n[containers]\nsocket = "/nonexistent"\n')
    flags = ("--config", str(config), "--simulate", "none", "--grpc", door, "--http", "127.0.0.1:0")
    with running_agent(*flags, ready="listening for HTTP on") as agent, dialled(door) as channel:
        with pytest.raises(grpc.RpcError) as refusal:
            stub_of(channel).ListContainers(EMPTY, timeout=20)
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "containers.socket" in str(refusal.value.details())
        page, deadline = "", time.monotonic() + 20
        # The list is read behind the first page.
        while 'part_up{part="containers"}' not in page and time.monotonic() < deadline:
            with urllib.request.urlopen(f"http://{agent.http()}/metrics", timeout=20) as answer:
                page = answer.read().decode()
        assert 'guest_service_part_up{part="containers"} 0' in page
