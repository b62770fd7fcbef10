"""A machine to judge: a /sys tree with cards, a verifier that is a real process, a policy file, and the door itself.

The verifier is a program that the tests write: it sees the real arguments and answers, hangs or dies as a test says. Rejected: replacing
the functions that run it, because then the process group, the pipes and the limits would not be tested.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What nvattest claims of one card, as seen on an H100 in September 2026, with two of the keys that the gate has no opinion on.
GOOD_CLAIM: dict[str, Any] = {
    "x-nvidia-device-type": "gpu",
    "eat_nonce": "NONCE",
    "x-nvidia-gpu-attestation-report-nonce-match": True,
    "measres": "success",
    "secboot": True,
    "dbgstat": "disabled",
    "hwmodel": "GH100 A01 GSP BROM",
    "x-nvidia-gpu-driver-version": "570.124.06",
}


def good_answer(cards: int = 1) -> dict[str, Any]:
    """A verifier's answer that passes; NONCE stands for the nonce of the run."""
    return {"result_code": 0, "result_message": "Ok", "claims": [dict(GOOD_CLAIM) for _ in range(cards)]}


@dataclass(frozen=True)
class Outcome:
    status: int
    stdout: str
    stderr: str

    @property
    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.stdout)
        return report

    def verdict(self, check: str) -> str:
        (found,) = [entry for entry in self.report["checks"] if entry["check"] == check]
        return str(found["verdict"])


@dataclass
class Machine:
    """One machine in `folder`; with no cards until add_card."""

    folder: Path
    policy: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.devices.mkdir(parents=True)
        self.answers(good_answer())

    @property
    def devices(self) -> Path:
        return self.folder / "sys/bus/pci/devices"

    @property
    def runs(self) -> list[list[str]]:
        """The arguments of every run of the verifier so far."""
        log = self.folder / "runs"
        return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []

    def add_card(self, address: str = "0000:01:00.0", *, vendor: int = 0x10DE, class_code: int = 0x030200) -> None:
        card = self.devices / address
        card.mkdir()
        for name, value in (("vendor", f"0x{vendor:04x}"), ("device", "0x2335"), ("class", f"0x{class_code:06x}")):
            (card / name).write_text(f"{value}\n", encoding="ascii")

    def answers(self, answer: dict[str, Any] | str) -> None:
        """Let the verifier print `answer` with NONCE filled in, and exit 0."""
        text = answer if isinstance(answer, str) else json.dumps(answer)
        self.does(f"sys.stdout.write({text!r}.replace('NONCE', nonce))")

    def does(self, body: str) -> None:
        """Let the verifier run `body`, Python with `nonce`, `sys`, `os` and `time`."""
        program = self.folder / "verifier.py"
        program.write_text(
            "import json, os, sys, time\n"
            f"open({str(self.folder / 'runs')!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
            "nonce = sys.argv[sys.argv.index('--nonce') + 1]\n"
            f"{body}\n",
            encoding="utf-8",
        )
        self.policy["verifier"] = [sys.executable, "-I", "-S", str(program)]

    def write_policy(self) -> Path:
        path = self.folder / "policy.toml"
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in self.policy.items()), encoding="utf-8")
        return path

    def command(self, *options: str) -> list[str]:
        """The door's command line, with this machine's bus and policy."""
        door = [sys.executable, "-m", "guest_service", "boot-gate"]
        return [*door, "--policy", str(self.write_policy()), "--sysfs", str(self.folder / "sys"), *options]

    def gate(self, *options: str) -> Outcome:
        """Run the door to its end, with a JSON report."""
        done = subprocess.run(self.command("-o", "json", *options), capture_output=True, text=True, check=False, timeout=50)
        return Outcome(done.returncode, done.stdout, done.stderr)
