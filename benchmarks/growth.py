"""How the proxy's cost grows with guests and with cards: at most linearly, and the hold of its event loop not at all.

    make bench-growth

For 10, 100, 1000 and 4000 guests with 8 cards, and for 1, 8 and 16 cards of 1000 guests, all in base values, a proxy in a process of its
own is asked by a client in another: CPU for one collection; its memory; for how long the event loop computes on end beside collections and
scrapes; and how long a cold start takes until the first collection is whole. What making a page takes is measured in a process that does
nothing else, because a scrape's guests are asked behind it. Exponents are slopes by least squares of logarithms. Rejected: guests that
answer a constant (nothing would change).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import psutil

from benchmarks.figures import ROUNDS_LEAST, Report
from benchmarks.fleet_guests import gpus, system
from benchmarks.fleet_metrics import Ticker, change, known_fleet, page_of, pages_of, timed
from benchmarks.forwarders import cpu_seconds, start
from guest_fleet.v1 import fleet_pb2
from guest_metrics.groups import OF_A_FLEET
from guest_transport.addresses import TcpAddress, UnixAddress
from guest_transport.http.server import PageServer
from guest_transport.options import channel_options
from vmm_proxy.app import build
from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.garbage import collect_rarely
from vmm_proxy.pages.app import create_http_app

GUESTS, CARDS = (10, 100, 1000, 4000), (1, 8, 16)
USUAL_GUESTS, USUAL_CARDS = 1000, 8
EXPONENT_LIMIT, HOLD_EXPONENT_LIMIT = 1.05, 0.1
PROCESSES = 4
# Answers of each guest, one after the other.
VARIANTS = 7
COLLECT = "/guest_fleet.v1.FleetService/CollectGpuInfo"
# A page asks its guests again after a second; within it none has changed.
PAUSE_SECONDS = 1.1


async def guests(folder: Path, first: int, end: int, cards: int) -> None:
    """One process that is the guests from `first` up to `end`; each answer differs from the one before."""
    answers = [gpus(0, turn, cards, only_base=True).SerializeToString() for turn in range(VARIANTS)]
    systems = [system(0, turn).SerializeToString() for turn in range(VARIANTS)]
    turn = 0

    async def gpu_info(_request: bytes, _context: object) -> bytes:
        nonlocal turn
        turn += 1
        return answers[turn % VARIANTS]

    async def sys_info(_request: bytes, _context: object) -> bytes:
        return systems[turn % VARIANTS]

    async def nothing(_request: bytes, _context: object) -> bytes:
        return b""

    behaviours = {"GpuInfo": gpu_info, "SysInfo": sys_info, "Info": nothing, "ListContainers": nothing, "NetworkInfo": nothing}
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.unary_unary_rpc_method_handler(behaviour, None, None) for name, behaviour in behaviours.items()
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("guest_api.GuestApi", handlers),))
    for number in range(first, end):
        server.add_insecure_port(f"unix:{folder}/g{number}")
    await server.start()
    print("listening on all", file=sys.stderr, flush=True)
    await server.wait_for_termination()


async def proxy(folder: Path, count: int) -> None:
    """The proxy in front of them; for each line on stdin it says how long its loop computed on end since the last one."""
    directory = Directory(GuestEntry(f"vm{number:05}", UnixAddress(f"{folder}/g{number}")) for number in range(count))
    parts = build(directory)
    pages = pages_of(parts, with_containers=False)
    server = PageServer()
    await parts.server.start([UnixAddress(f"{folder}/proxy")])
    await server.start(create_http_app(pages), TcpAddress("127.0.0.1", 0))
    collect_rarely()
    print(f"listening on {server.addresses[0]}", file=sys.stderr, flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while True:
        ticker = Ticker()
        line = await reader.readline()
        print(1000 * (await ticker.stop())[1], flush=True)
        if not line:
            return


async def pages(count: int, cards: int, rounds: int) -> None:
    """What making a page takes of which every guest changed, and one of which none did, as JSON."""
    parts = known_fleet(count)
    found: dict[str, list[float]] = {"page, changed, CPU": [], "page, unchanged, CPU": []}
    for turn in range(rounds + 1):
        change(parts, turn, cards, only_base=True)
        for values in found.values():
            seconds = await timed(lambda: page_of(parts, OF_A_FLEET))
            if turn:
                # The first page makes what later ones keep.
                values.append(1000 * seconds)
    print(json.dumps(found))


async def collected(channel: grpc.aio.Channel) -> int:
    """How many guests answered one collection."""
    rpc: grpc.aio.UnaryStreamMultiCallable[Any, Any] = channel.unary_stream(
        COLLECT,
        request_serializer=fleet_pb2.CollectGpuInfoRequest.SerializeToString,
        response_deserializer=fleet_pb2.CollectGpuInfoResponse.FromString,
    )
    got = 0
    async for answer in rpc(fleet_pb2.CollectGpuInfoRequest(), timeout=60):
        got += sum(entry.WhichOneof("outcome") == "gpu_info" for entry in answer.guests)
    return got


async def page(address: str) -> int:
    """The size of /metrics."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    size = 0
    while chunk := await reader.read(1 << 20):
        size += len(chunk)
    writer.close()
    return size


async def measure(folder: Path, count: int, cards: int, rounds: int) -> dict[str, list[float]]:
    """The figures of one size of fleet, a value for each round."""
    share = math.ceil(count / PROCESSES)
    numbers = [(at * share, min(count, (at + 1) * share)) for at in range(PROCESSES) if at * share < count]
    me = ("-m", "benchmarks.growth")
    served = [await start(*me, "guests", str(folder), str(first), str(end), str(cards)) for first, end in numbers]
    began = time.perf_counter()
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, *me, "proxy", str(folder), str(count)]
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    stdin, stdout = process.stdin, process.stdout

    async def held_ms() -> float:
        stdin.write(b"\n")
        return float(await stdout.readline())

    found: dict[str, list[float]] = {"collection, CPU": [], "loop on end": []}
    try:
        address = ""
        while "listening on " not in address:
            address = (await process.stderr.readline()).decode().strip()
        address = address.rpartition(" ")[2]
        socket = UnixAddress(f"{folder}/proxy")
        async with grpc.aio.insecure_channel(socket.grpc_target, options=channel_options(socket)) as channel:
            # Channels that are not there within one collection's time are in the next.
            while await collected(channel) < count:
                pass
            found["cold start to a whole collection"] = [1000 * (time.perf_counter() - began)]
            await page(address)
            await held_ms()
            for _ in range(rounds):
                before = cpu_seconds(process.pid)
                if (got := await collected(channel)) != count:
                    raise SystemExit(f"{got} of {count} guests answered a collection")
                found["collection, CPU"].append(1000 * (cpu_seconds(process.pid) - before))
                await page(address)
                # The guests are asked again from then on; the loop is watched while they are.
                await asyncio.sleep(PAUSE_SECONDS)
                await page(address)
                await asyncio.sleep(PAUSE_SECONDS)
                found["loop on end"].append(await held_ms())
            found["memory"] = [psutil.Process(process.pid).memory_info().rss / 2**20]
    finally:
        for each in (process, *served):
            each.kill()
            await each.wait()
    made = await asyncio.create_subprocess_exec(
        sys.executable, *me, "pages", str(folder), str(count), str(cards), str(rounds), stdout=pipe
    )
    out, _ = await made.communicate()
    of_pages: dict[str, list[float]] = json.loads(out)
    return found | of_pages


def exponent(sizes: list[int], values: list[float]) -> float:
    """The slope of the logarithms, by least squares."""
    return statistics.linear_regression([math.log(size) for size in sizes], [math.log(value) for value in values]).slope


async def compare(all_guests: list[int], all_cards: list[int], rounds: int) -> int:
    """Every size, then the exponents; the exit status."""
    to = Report(
        "growth", "How the proxy's cost grows with guests (8 cards each) and with cards (of 1000 guests), in base values."
    )
    usual = USUAL_GUESTS if USUAL_GUESTS in all_guests else all_guests[-1]
    found = {}
    for count, cards in dict.fromkeys(
        [*((count, USUAL_CARDS) for count in all_guests), *((usual, cards) for cards in all_cards)]
    ):
        with tempfile.TemporaryDirectory(prefix="gs") as folder:
            found[count, cards] = await measure(Path(folder), count, cards, rounds)
        for name, values in found[count, cards].items():
            to.add(f"{count} guests, {cards} cards: {name}", values, "MiB" if name == "memory" else "ms")
    for what, sizes in (
        ("guests", [(count, USUAL_CARDS) for count in all_guests]),
        ("cards", [(usual, cards) for cards in all_cards]),
    ):
        if len(sizes) < 2:
            continue
        axis = [size[0] if what == "guests" else size[1] for size in sizes]
        for name in found[sizes[0]]:
            medians = [statistics.median(found[size][name]) for size in sizes]
            limit = HOLD_EXPONENT_LIMIT if name == "loop on end" else EXPONENT_LIMIT
            # One fit of medians; it has no rounds of its own.
            to.add(f"exponent in {what}: {name}", [exponent(axis, medians)] * ROUNDS_LEAST, "", limit)
    return to.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["guests", "proxy", "pages"], help=argparse.SUPPRESS)
    parser.add_argument("folder", nargs="?", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("numbers", nargs="*", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--guests", type=lambda text: [int(each) for each in text.split(",")], default=list(GUESTS))
    parser.add_argument("--cards", type=lambda text: [int(each) for each in text.split(",")], default=list(CARDS))
    parser.add_argument("--rounds", type=int, default=ROUNDS_LEAST)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    if arguments.part == "guests":
        asyncio.run(guests(arguments.folder, *arguments.numbers))
    elif arguments.part == "proxy":
        asyncio.run(proxy(arguments.folder, *arguments.numbers))
    elif arguments.part == "pages":
        asyncio.run(pages(*arguments.numbers))
    else:
        raise SystemExit(asyncio.run(compare(arguments.guests, arguments.cards, arguments.rounds)))


if __name__ == "__main__":
    main()
