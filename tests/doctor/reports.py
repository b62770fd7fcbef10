"""Runs a doctor as a process of its own and reads its report."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from guest_transport.doctor.findings import Finding, Verdict

# A doctor here takes a second; with a check that hangs, ten more; a machine may have other work.
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Report:
    status: int
    verdict: str
    findings: list[dict[str, str]]

    def of(self, check: str) -> list[dict[str, str]]:
        """The findings of one check; it must have at least one."""
        found = [finding for finding in self.findings if finding["check"] == check]
        assert found, f"{check} is not in {self.findings}"
        return found

    def verdicts(self, check: str) -> list[str]:
        return [finding["verdict"] for finding in self.of(check)]

    def only(self, check: str) -> dict[str, str]:
        (finding,) = self.of(check)
        return finding

    def wrong(self, check: str) -> dict[str, str]:
        """The one finding of `check` that is wrong; it says what to do."""
        (finding,) = [each for each in self.of(check) if each["verdict"] == "wrong"]
        assert finding["do"], finding
        return finding


def parse(status: int, stdout: str, stderr: str) -> Report:
    assert stderr == "", stderr
    tree = json.loads(stdout)
    assert tree.keys() == {"verdict", "findings"}
    for finding in tree["findings"]:
        assert finding.keys() == {"check", "verdict", "seen", "do"}
        assert finding["seen"], finding
        assert finding["verdict"] != "wrong" or finding["do"], finding
    something_wrong = any(finding["verdict"] == "wrong" for finding in tree["findings"])
    assert (status, tree["verdict"]) == ((1, "wrong") if something_wrong else (0, "ok"))
    return Report(status, tree["verdict"], tree["findings"])


def guest_doctor(config: Path, **env: str) -> Report:
    command = [sys.executable, "-m", "guest_service", "doctor", "--config", str(config), "-o", "json"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
    )
    return parse(done.returncode, done.stdout, done.stderr)


async def host_doctor(config: Path, **env: str) -> Report:
    """Beside guests that live in the test's own loop."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "vmm_proxy", "doctor", "--config", str(config), "-o", "json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **env},
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), TIMEOUT_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return parse(process.returncode, out.decode(), err.decode())


def words(findings: Sequence[Finding], verdict: Verdict) -> str:
    """What the findings with `verdict` say, for a judgement that has only those."""
    assert {finding.verdict for finding in findings} == {verdict}, findings
    return " | ".join(finding.seen for finding in findings)
