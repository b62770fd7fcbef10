"""What people copy from and read about must be what the gate does."""

from __future__ import annotations

import re
from pathlib import Path

from guest_service.boot_gate.gate import CHECKS
from guest_service.boot_gate.policy import Policy, read_policy

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "deploy/boot-gate.example.toml"
PAGE = (ROOT / "docs/boot-gate.md").read_text(encoding="utf-8")


def test_the_example_policy_is_the_strictest_one() -> None:
    assert read_policy(EXAMPLE) == Policy()


def test_the_example_policy_names_every_key_and_no_other(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    everything = tmp_path / "policy.toml"
    everything.write_text(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE), encoding="utf-8")
    assert read_policy(everything) != Policy()
    assert set(re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE)) == set(Policy.__struct_fields__)


def test_the_page_lists_the_checks_in_their_order() -> None:
    section = PAGE.partition("## What is checked")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == CHECKS
