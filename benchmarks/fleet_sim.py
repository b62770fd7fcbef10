"""Many hosts under one Prometheus: real proxies with simulated guests, scraped by a real Prometheus for minutes.

    make fleet-sim            20 hosts with 50 guests of 8 cards each, ten minutes

Says what a guest costs its proxy (processor time for a scrape, memory, bytes of a page) and what all of them cost Prometheus (series,
samples, memory, processor time, bytes on disk). docs/scale.md has the figures and what follows for a thousand hosts. The guests are few
processes on Unix sockets whose values change at every answer, so their own time is no part of it. Beside them runs a host without guests,
so that what a proxy costs by itself can be taken off. Rejected: a proxy that is asked in this process (its memory could not be told from
ours), and a Prometheus of our own making (its cost is the question).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.fleet_guests import CARDS, guest_processes
from benchmarks.scraper import START_SECONDS, Prometheus, dropped, line_with, running

# As deploy/examples/many-hosts has them.
INTERVAL_SECONDS = 15
# What comes before is start: first calls, first lines of a page, memory that is taken once.
WARM_UP_SHARE = 0.2
MIB = 1024 * 1024

CONFIG = """
global: {{scrape_interval: {interval}s, scrape_timeout: {timeout}s}}
scrape_configs:
  - job_name: vmm-proxy
    static_configs:
{hosts}
  - job_name: empty
    static_configs:
      - {{targets: ["{empty}"], labels: {{host: empty}}}}
"""


@dataclass(frozen=True)
class Measured:
    """One run; bytes and seconds."""

    hosts: int
    guests: int
    seconds: float
    interval_seconds: int
    load: tuple[float, float, float]
    down: float
    samples_of_a_scrape: float
    samples_of_an_empty_host: float
    scrape_seconds_mean: float
    scrape_seconds_longest: float
    page_bytes: int
    page_bytes_gzip: int
    proxy_cpu_seconds_of_a_scrape: float
    empty_cpu_seconds_of_a_scrape: float
    proxy_memory_bytes: float
    empty_memory_bytes: float
    head_series: float
    samples_a_second: float
    prometheus_cpu_share: float
    prometheus_memory_at_start_bytes: int
    prometheus_memory_bytes: int
    prometheus_memory_peak_bytes: int
    block_bytes_of_a_sample: float
    wal_bytes_of_a_sample: float


async def _proxies(folder: Path, hosts: int, guests: int, ending: contextlib.AsyncExitStack) -> list[str]:
    """Proxies whose guests are the sockets in `folder`, and an empty one at the end; where each has its pages."""
    addresses = []
    for host in range(hosts + 1):
        entries = (
            ""
            if host == hosts
            else "".join(
                f"[[guest]]\nid = 'vm{number:02d}'\naddress = 'unix:{folder}/{host * guests + number}'\n"
                for number in range(guests)
            )
        )
        config = folder / f"host{host}.toml"
        config.write_text(f"[grpc]\nlisten = ['unix:{folder}/p{host}']\n[http]\nlisten = '127.0.0.1:0'\n{entries}")
        command = (sys.executable, "-m", "vmm_proxy", "serve", "--config", str(config))
        process = await ending.enter_async_context(running(*command))
        addresses.append(await line_with(process, r"listening for HTTP on (\S+)"))
        ending.callback(asyncio.create_task(dropped(process)).cancel)
    return addresses


async def _prometheus(folder: Path, addresses: Sequence[str], interval: int, ending: contextlib.AsyncExitStack) -> Prometheus:
    program = shutil.which("prometheus")
    if program is None:
        raise SystemExit("missing: prometheus (Debian package prometheus)")
    hosts = [
        f'      - {{targets: ["{address}"], labels: {{host: host{number}}}}}' for number, address in enumerate(addresses[:-1])
    ]
    config = folder / "prometheus.yml"
    # Two thirds of the interval, as in the example.
    timeout = max(1, interval * 2 // 3)
    config.write_text(CONFIG.format(interval=interval, timeout=timeout, hosts="\n".join(hosts), empty=addresses[-1]))
    process = await ending.enter_async_context(
        running(
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--web.listen-address=127.0.0.1:0",
            "--web.enable-admin-api",
        )
    )
    address = await line_with(process, r'msg="Listening on" address=(\S+)')
    await line_with(process, r"(Server is ready)")
    ending.callback(asyncio.create_task(dropped(process)).cancel)
    return Prometheus(process.pid, address)


def page_size(address: str, coding: str) -> int:
    """Bytes of a page as they go over the wire."""
    request = urllib.request.Request(f"http://{address}/metrics", headers={"Accept-Encoding": coding})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return len(answer.read())


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


async def measure(folder: Path, hosts: int, guests: int, seconds: float, interval: int) -> Measured:
    """One run; takes `seconds` and the time to start."""
    async with contextlib.AsyncExitStack() as ending:
        await ending.enter_async_context(guest_processes(hosts * guests, str(folder)))
        addresses = await _proxies(folder, hosts, guests, ending)
        prometheus = await _prometheus(folder, addresses, interval, ending)
        at_start = prometheus.memory_bytes()
        async with asyncio.timeout(START_SECONDS + interval):
            # Its discovery of targets takes some seconds, and the first scrapes are spread over an interval.
            while await prometheus.value("count(up)") <= hosts:
                await asyncio.sleep(0.5)
        await asyncio.sleep(seconds * WARM_UP_SHARE)
        began, cpu = time.monotonic(), prometheus.cpu_seconds()
        appended = await prometheus.own("prometheus_tsdb_head_samples_appended_total")
        await asyncio.sleep(seconds * (1 - WARM_UP_SHARE))
        lasted = time.monotonic() - began
        all_appended = await prometheus.own("prometheus_tsdb_head_samples_appended_total")
        cpu_share = (prometheus.cpu_seconds() - cpu) / lasted
        memory, peak = prometheus.memory_bytes(), prometheus.memory_bytes("VmHWM")
        window = f"[{int(lasted)}s]"

        async def of(job: str, expression: str) -> float:
            return await prometheus.value(expression.replace("{}", f'{{job="{job}"}}').replace("[]", window))

        cpu_of_a_scrape = f"avg(rate(process_cpu_seconds_total{{}}[])) * {interval}"
        sizes = [await asyncio.to_thread(page_size, addresses[0], coding) for coding in ("identity", "gzip")]
        data = folder / "data"
        wal = size_of(data / "wal")
        blocks = size_of(data / "snapshots" / await prometheus.snapshot())
        return Measured(
            hosts=hosts,
            guests=guests,
            seconds=seconds,
            interval_seconds=interval,
            load=os.getloadavg(),
            down=await of("vmm-proxy", "sum(count_over_time(up{}[])) - sum(sum_over_time(up{}[]))"),
            samples_of_a_scrape=await of("vmm-proxy", "avg(avg_over_time(scrape_samples_scraped{}[]))"),
            samples_of_an_empty_host=await of("empty", "avg(avg_over_time(scrape_samples_scraped{}[]))"),
            scrape_seconds_mean=await of("vmm-proxy", "avg(avg_over_time(scrape_duration_seconds{}[]))"),
            scrape_seconds_longest=await of("vmm-proxy", "max(max_over_time(scrape_duration_seconds{}[]))"),
            page_bytes=sizes[0],
            page_bytes_gzip=sizes[1],
            proxy_cpu_seconds_of_a_scrape=await of("vmm-proxy", cpu_of_a_scrape),
            empty_cpu_seconds_of_a_scrape=await of("empty", cpu_of_a_scrape),
            proxy_memory_bytes=await of("vmm-proxy", "avg(max_over_time(process_resident_memory_bytes{}[]))"),
            empty_memory_bytes=await of("empty", "avg(max_over_time(process_resident_memory_bytes{}[]))"),
            head_series=await prometheus.own("prometheus_tsdb_head_series"),
            samples_a_second=(all_appended - appended) / lasted,
            prometheus_cpu_share=cpu_share,
            prometheus_memory_at_start_bytes=at_start,
            prometheus_memory_bytes=memory,
            prometheus_memory_peak_bytes=peak,
            block_bytes_of_a_sample=blocks / all_appended,
            wal_bytes_of_a_sample=wal / all_appended,
        )


def show(run: Measured) -> None:
    """The figures, and per guest what is left when the empty host is taken off."""
    guests = run.guests
    cpu = (run.proxy_cpu_seconds_of_a_scrape - run.empty_cpu_seconds_of_a_scrape) / guests
    memory = (run.proxy_memory_bytes - run.empty_memory_bytes) / guests
    series = (run.samples_of_a_scrape - run.samples_of_an_empty_host) / guests
    grown = run.prometheus_memory_bytes - run.prometheus_memory_at_start_bytes
    print(
        f"{run.hosts} hosts x {guests} guests x {CARDS} cards, every {run.interval_seconds} s, {run.seconds:.0f} s, load {run.load}"
    )
    print(
        f"a guest: {series:.1f} series, {1000 * cpu:.2f} ms of its proxy's CPU for a scrape, {memory / 1024:.0f} KiB of its memory"
    )
    print(f"an empty host: {run.samples_of_an_empty_host:.0f} series, {run.empty_memory_bytes / MIB:.1f} MiB")
    print(f"a host's page: {run.page_bytes} bytes, {run.page_bytes_gzip} with gzip")
    print(f"scrapes: mean {run.scrape_seconds_mean:.3f} s, longest {run.scrape_seconds_longest:.3f} s, failed {run.down:.0f}")
    print(
        f"Prometheus: {run.head_series:.0f} series, {run.samples_a_second:.0f} samples a second, {run.prometheus_cpu_share:.3f} of a core"
    )
    first, last, most = (
        value / MIB
        for value in (run.prometheus_memory_at_start_bytes, run.prometheus_memory_bytes, run.prometheus_memory_peak_bytes)
    )
    print(
        f"its memory: {first:.0f} MiB at first, {last:.0f} at last, {most:.0f} at most; {grown / run.head_series / 1024:.2f} KiB a series"
    )
    print(
        f"disk: {run.block_bytes_of_a_sample:.2f} bytes a sample in a block, {run.wal_bytes_of_a_sample:.2f} in the log before it"
    )


def main() -> int:
    """Run it; 1 when a scrape failed."""
    parser = argparse.ArgumentParser(description="What many hosts cost their proxies and one Prometheus.")
    parser.add_argument("--hosts", type=int, default=20)
    parser.add_argument("--guests", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--interval", type=int, default=INTERVAL_SECONDS, help="seconds between two scrapes")
    parser.add_argument("-o", "--output", type=Path, help="the figures as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fs") as folder:
        run = asyncio.run(measure(Path(folder), arguments.hosts, arguments.guests, 60 * arguments.minutes, arguments.interval))
    show(run)
    if arguments.output:
        arguments.output.write_text(json.dumps(asdict(run), indent=1) + "\n", encoding="utf-8")
    return 1 if run.down else 0


if __name__ == "__main__":
    raise SystemExit(main())
