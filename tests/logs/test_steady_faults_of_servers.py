"""Real servers under faults that do not end: each fault is in the log, with its count, and not once for each call."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
from google.protobuf import empty_pb2

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options
from guest_transport.process.repeated_lines import WINDOW_SECONDS, without_numbers
from tests.inventory.sys_tree import SysTree
from tests.logs.servers import again, ask_http, counted, page, serving
from tests.policy.callers import bearer
from tests.policy.test_tls import tokens
from tests.proxy.raw_guest import Stream, raw_guest

TIMES = 40


def assert_steady(lines: list[str], since: float) -> None:
    """No two lines of `lines` say the same, but for one a minute that counts and those at the end."""
    minutes = int((time.monotonic() - since) / WINDOW_SECONDS)
    # Time and the count differ.
    said = Counter(without_numbers(line.partition(" ")[2].partition(" (")[0]) for line in lines)
    often = {words: count for words, count in said.items() if count > 2 + minutes}
    assert not often, lines


async def test_a_proxy_says_each_steady_fault_a_few_times_and_counts_the_rest(sockets: Path) -> None:
    folder, since = sockets, time.monotonic()
    (folder / "guests.d").mkdir()

    async def not_utf8(stream: Stream) -> None:
        await stream.fail("13", f"%ff%fe {stream.number}")

    async def nonsense(stream: Stream) -> None:
        await stream.answer(b"\xff\xff\xff")

    guests = {"down": f"unix:{folder}/nobody", "words": f"unix:{folder}/words", "nonsense": f"unix:{folder}/nonsense"}
    guests["refusing"] = f"hvsock:{folder}/vmm:8000"
    config = folder / "proxy.toml"
    config.write_text(
        f"[grpc]\nlisten = ['unix:{folder}/p']\n[http]\nlisten = 'unix:{folder}/http'\n[directory]\ndir = '{folder}/guests.d'\n"
        + tokens(folder, "viewer")
        + "".join(f"[[guest]]\nid = '{guest}'\naddress = '{address}'\n" for guest, address in guests.items())
    )
    touched = 0

    async def touch() -> None:
        nonlocal touched
        touched += 1
        (folder / "guests.d" / "bad.toml").write_text(f"id = {touched}\n" if touched % 2 else "what is this")

    address = UnixAddress(f"{folder}/p")
    async with (
        raw_guest(f"{folder}/words", not_utf8),
        raw_guest(f"{folder}/nonsense", nonsense),
        raw_guest(f"{folder}/vmm", nonsense) as vmm,
        serving("vmm_proxy", "--config", str(config), ready="guests known") as proxy,
        grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)) as channel,
    ):
        vmm.vmm_answer = b"ERR no such port\n"
        api = guest_api_pb2_grpc.ProxiedGuestApiStub(channel)

        def asked(guest: str, method: str = "GpuInfo", caller: str = "") -> Callable[[], Awaitable[object]]:
            metadata = bearer(caller) if caller else ()
            return lambda: getattr(api, method)(guest_api_pb2.Id(id=guest), timeout=20, metadata=metadata)

        await again(
            TIMES,
            *map(asked, guests),
            asked("down", "Info", "nobody knows me"),
            asked("down", "Shutdown", "viewer"),
            asked("down", "Shutdown", "nobody knows me"),
            lambda: ask_http(folder / "http", b"NONSENSE\r\n\r\n"),
            touch,
        )
        await proxy.line_with("bad.toml")
        shown = (await ask_http(folder / "http", page("/metrics"))).decode()
        assert 'vmm_proxy_directory_refused{source="folder"} 1' in shown
        assert 'vmm_proxy_directory_source_up{source="folder"} 1' in shown
        await proxy.stop()
    assert_steady(proxy.lines, since)
    assert len(proxy.lines) < 60
    text = "\n".join(proxy.lines)
    assert "guest down: unreachable: its socket does not exist" in text
    assert "the VMM refused after 'ERR no such port" in text
    assert "a peer's status text is not UTF-8" in text
    assert counted(proxy.lines, "ProxiedGuestApi/Info by ") == TIMES
    assert counted(proxy.lines, '"token viewer"') == TIMES
    assert "Traceback" not in text


async def test_an_agent_says_each_steady_fault_a_few_times_and_counts_the_rest(sockets: Path) -> None:
    folder, since = sockets, time.monotonic()
    tree = SysTree(folder / "sys")
    tree.add("0000:01:00.0")
    (folder / "sys/module/nvidia").mkdir(parents=True)
    config = folder / "guest.toml"
    config.write_text(
        f"[http]\nlisten = 'unix:{folder}/http'\npublic_sysinfo = true\npublic_containers = true\npublic_logs = true\n"
        "[gpu]\nfailure_backoff_seconds = 1.0\nsample_ttl_seconds = 1.0\nnvml_library = '/nowhere/libnvidia-ml.so.1'\n"
        f"[containers]\nsocket = '{folder}/engine'\n[host]\nsysfs_root = '{folder}/sys'\ndata_disks = ['/nowhere']\n"
        f"[grpc]\nlisten = ['unix:{folder}/g', '127.0.0.1:0']\n"
    )
    engine, nothing = folder / "engine", empty_pb2.Empty()

    async def come_and_go() -> None:
        if engine.exists():
            engine.unlink()
        else:
            engine.write_text("no socket")

    async with serving("guest_service", "--config", str(config), ready="listening for HTTP") as agent:
        target = (await agent.line_with("listening on 127.0.0.1")).rpartition(" ")[2]
        async with grpc.aio.insecure_channel(target) as channel:
            api = guest_api_pb2_grpc.GuestApiStub(channel)
            await again(
                TIMES,
                lambda: api.Shutdown(nothing, timeout=20),
                lambda: api.ListContainers(nothing, timeout=20),
                lambda: api.GpuInfo(nothing, timeout=20),
                lambda: api.SysInfo(nothing, timeout=20),
                lambda: ask_http(folder / "http", page("/metrics")),
                lambda: ask_http(folder / "http", page("/logs/web")),
                lambda: ask_http(folder / "http", b"NONSENSE\r\n\r\n"),
                come_and_go,
            )
        await agent.stop()
    assert_steady(agent.lines, since)
    assert len(agent.lines) < 40
    text = "\n".join(agent.lines)
    assert counted(agent.lines, "Shutdown by 127.0.0.1") == TIMES
    assert "no GPU sample: /nowhere/libnvidia-ml.so.1 cannot be loaded" in text
    assert "disk /nowhere: nothing is mounted there" in text
    assert "Traceback" not in text
