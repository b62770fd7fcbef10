"""The reporter's own process against a real libvirtd: every list, and an end of its own when libvirt goes."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.domains.libvirt_daemon import LibvirtDaemon, module_environment
from vmm_proxy.directory.libvirt.report import Report, read_report

ONE = "aaaaaaaa-0000-0000-0000-000000000001"
VSOCK = "<vsock model='virtio'><cid auto='no' address='{}'/></vsock>"
BOUND_SECONDS = 30


async def _reporter(uri: str, sysfs: Path, modules: Path | None, *, parent: int | None = None) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "vmm_proxy.directory.libvirt.reporter", str(parent or os.getpid()), uri, str(sysfs)),
        env={**os.environ, **module_environment(modules)},
        stdout=asyncio.subprocess.PIPE,
    )


async def _report(reporter: asyncio.subprocess.Process) -> Report:
    assert reporter.stdout
    return read_report(await asyncio.wait_for(reporter.stdout.readline(), BOUND_SECONDS))


async def _domains(reporter: asyncio.subprocess.Process, expected: dict[str, int | None]) -> None:
    """Read reports until one lists what is expected."""
    while True:
        report = await _report(reporter)
        assert not report.problem, report
        if report.domains is not None and {domain.uuid: domain.cid for domain in report.domains} == expected:
            return


async def test_a_reporter_tells_of_every_domain_and_ends_with_the_reason_when_libvirt_goes(
    daemon: LibvirtDaemon, folder: Path, modules: Path | None
) -> None:
    reporter = await _reporter(daemon.read_only_uri, folder, modules)
    try:
        await _domains(reporter, {})
        await daemon.start_domain(ONE, "one", VSOCK.format(42))
        await _domains(reporter, {ONE: 42})
        await daemon.stop_domain(ONE)
        await _domains(reporter, {})
        await daemon.end()
        last = await _report(reporter)
        while not last.problem:
            last = await _report(reporter)
        assert last.domains is None
        assert await asyncio.wait_for(reporter.wait(), BOUND_SECONDS) == 1
    finally:
        if reporter.returncode is None:
            reporter.kill()
            await reporter.wait()


async def test_a_reporter_that_cannot_connect_says_why_in_its_only_line(folder: Path, modules: Path | None) -> None:
    reporter = await _reporter(f"test+unix:///default?socket={folder}/nobody", folder, modules)
    output, _ = await asyncio.wait_for(reporter.communicate(), BOUND_SECONDS)
    assert reporter.returncode == 1
    assert output.count(b"\n") == 1
    assert "Failed to connect" in read_report(output).problem


async def test_a_reporter_whose_proxy_is_gone_reports_nothing(folder: Path, modules: Path | None) -> None:
    reporter = await _reporter("test:///default", folder, modules, parent=2**22 + 1)  # beyond any pid
    output, _ = await asyncio.wait_for(reporter.communicate(), BOUND_SECONDS)
    assert (reporter.returncode, output) == (1, b"")
