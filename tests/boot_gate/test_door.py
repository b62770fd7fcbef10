"""The door in real processes: the order of the checks, the exit status, the report, the evidence."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from guest_service.boot_gate.gate import CHECKS
from tests.boot_gate.conftest import MakeNvml
from tests.boot_gate.machine import Machine, good_answer


def canonical_sha256(tree: object) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def test_a_machine_with_an_attested_card_in_cc_mode_passes(machine: Machine, scripted_nvml: MakeNvml) -> None:
    outcome = machine.gate("--nvml-library", str(scripted_nvml("cards 1\n").path))
    assert (outcome.status, outcome.stderr) == (0, "")
    assert outcome.report["verdict"] == "pass"
    assert outcome.report["reason"] == ""
    assert [check["check"] for check in outcome.report["checks"]] == list(CHECKS)
    assert outcome.verdict("ready_state") == outcome.verdict("expected_gpus") == "not_needed"
    assert {outcome.verdict(name) for name in CHECKS} == {"pass", "not_needed"}


def test_the_verifier_is_given_a_fresh_nonce_of_32_bytes_behind_its_own_arguments(
    machine: Machine, scripted_nvml: MakeNvml
) -> None:
    library = str(scripted_nvml("cards 1\n").path)
    machine.policy["verifier"].append("--leading")
    nonces = [machine.gate("--nvml-library", library).report["nonce"] for _ in range(2)]
    assert machine.runs == [
        ["--leading", "attest", "--device", "gpu", "--verifier", "local", "--nonce", nonce, "--format", "json"]
        for nonce in nonces
    ]
    assert len({*nonces}) == 2
    assert [len(bytes.fromhex(nonce)) for nonce in nonces] == [32, 32]


def test_every_hash_in_the_report_is_of_evidence_that_somebody_else_can_check(machine: Machine, scripted_nvml: MakeNvml) -> None:
    evidence = machine.folder / "evidence.json"
    machine.policy["evidence_file"] = str(evidence)
    report = machine.gate("--nvml-library", str(scripted_nvml("cards 1\n").path), "--set-ready").report
    hashes = {check["check"]: check["evidence_sha256"] for check in report["checks"]}
    assert hashes["inventory"] == hashes["vendors"] == canonical_sha256(report["evidence"]["inventory"])
    assert hashes["nvml_count"] == hashes["cc_mode"] == hashes["devtools"] == canonical_sha256(report["evidence"]["nvml"])
    assert hashes["ready_state"] == canonical_sha256(report["evidence"]["nvml_when_ready"])
    assert hashes["verifier"] == hashes["claims"] == hashlib.sha256(evidence.read_bytes()).hexdigest()
    assert hashes["expected_gpus"] is None
    assert report["evidence"]["verifier_file"] == str(evidence)


def test_the_evidence_is_kept_for_its_owner_only_also_when_it_is_refused(machine: Machine) -> None:
    evidence = machine.folder / "evidence.json"
    machine.policy["evidence_file"] = str(evidence)
    machine.does('os.umask(0); sys.stdout.write(\'{"result_code": 7, "nonce": "\' + nonce + \'"}\')')
    outcome = machine.gate()
    assert outcome.status == 1
    assert json.loads(evidence.read_text(encoding="utf-8"))["nonce"] == outcome.report["nonce"]
    assert stat.S_IMODE(evidence.stat().st_mode) == 0o600
    assert [path.name for path in machine.folder.iterdir() if "evidence" in path.name] == ["evidence.json"]


def test_evidence_of_an_earlier_boot_is_not_left_for_this_one(bare_machine: Machine) -> None:
    evidence = bare_machine.folder / "evidence.json"
    evidence.write_text("{}", encoding="utf-8")
    bare_machine.policy["evidence_file"] = str(evidence)
    assert bare_machine.gate().status == 0
    assert not evidence.exists()


def test_evidence_that_cannot_be_kept_is_a_refusal(machine: Machine) -> None:
    machine.policy["evidence_file"] = str(machine.folder / "missing/evidence.json")
    outcome = machine.gate()
    assert outcome.status == 1
    assert "missing/evidence.json: cannot be kept" in outcome.stderr
    assert outcome.verdict("claims") == "not_reached"


def test_evidence_is_never_written_through_a_link(machine: Machine) -> None:
    other = machine.folder / "other"
    other.write_text("untouched", encoding="utf-8")
    evidence = machine.folder / "evidence.json"
    evidence.symlink_to(other)
    machine.policy["evidence_file"] = str(evidence)
    machine.answers({"result_code": 1})
    assert machine.gate().status == 1
    assert other.read_text(encoding="utf-8") == "untouched"
    assert not evidence.is_symlink()


@pytest.mark.parametrize("attest_gpu", [True, False])
def test_a_bus_that_cannot_be_read_stops_whatever_the_policy_says(bare_machine: Machine, attest_gpu: bool) -> None:
    bare_machine.policy["attest_gpu"] = attest_gpu
    bare_machine.devices.rmdir()
    outcome = bare_machine.gate()
    assert outcome.status == 1
    assert outcome.stderr.startswith("boot gate: refused: PCI inventory: ")
    assert outcome.stderr.count("\n") == 1
    assert outcome.verdict("inventory") == "refused"
    assert {outcome.verdict(name) for name in CHECKS[1:]} == {"not_reached"}


@pytest.mark.parametrize(("vendor", "class_code"), [(0x1234, 0x030000), (0x1002, 0x038000), (0x8086, 0x030200)])
def test_a_gpu_of_anybody_else_stops_before_any_program_runs(machine: Machine, vendor: int, class_code: int) -> None:
    machine.add_card("0000:00:02.0", vendor=vendor, class_code=class_code)
    outcome = machine.gate()
    assert outcome.status == 1
    assert "0000:00:02.0" in outcome.stderr
    assert outcome.verdict("vendors") == "refused"
    assert machine.runs == []


def test_a_machine_without_a_gpu_passes_and_runs_nothing(bare_machine: Machine) -> None:
    outcome = bare_machine.gate()
    assert outcome.status == 0
    assert outcome.verdict("verifier") == outcome.verdict("nvml_count") == "not_needed"
    assert bare_machine.runs == []


@pytest.mark.parametrize("attest_gpu", [True, False])
@pytest.mark.parametrize(("cards", "expected", "status"), [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 2, 1)])
def test_the_number_of_cards_that_the_policy_expects_must_be_there(
    bare_machine: Machine, attest_gpu: bool, cards: int, expected: int, status: int
) -> None:
    for number in range(cards):
        bare_machine.add_card(f"0000:0{number}:00.0")
    bare_machine.policy |= {"attest_gpu": attest_gpu, "expected_gpus": expected}
    outcome = bare_machine.gate()
    assert outcome.status == status
    assert outcome.verdict("expected_gpus") == ("pass" if status == 0 else "refused")
    assert bare_machine.runs == []


def test_without_attestation_foreign_cards_are_nobodys_business(machine: Machine) -> None:
    machine.add_card("0000:00:02.0", vendor=0x1234, class_code=0x030000)
    machine.policy["attest_gpu"] = False
    outcome = machine.gate()
    assert outcome.status == 0
    assert outcome.verdict("vendors") == outcome.verdict("claims") == "not_needed"
    assert machine.runs == []


def test_a_missing_verifier_stops(machine: Machine) -> None:
    machine.policy["verifier"] = ["guestscope-no-such-verifier"]
    outcome = machine.gate()
    assert outcome.status == 1
    assert outcome.stderr == (
        "boot gate: refused: verifier: guestscope-no-such-verifier cannot be started: No such file or directory; "
        "install it, or name another as verifier in the policy\n"
    )
    assert (outcome.verdict("expected_gpus"), outcome.verdict("claims")) == ("not_needed", "not_reached")


def test_a_reason_from_outside_stays_on_one_line(machine: Machine) -> None:
    machine.does("sys.stderr.write('first\\n\\x1b[2J\\u202eevil' * 1000 + '\\n'); sys.exit(3)")
    outcome = machine.gate()
    assert outcome.status == 1
    assert "exited with status 3" in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert outcome.stderr[:-1].isprintable()
    assert len(outcome.stderr) < 600


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("attest_gpus = true", "attest_gpus: unknown key"),
        ("attest_gpu = 1", "attest_gpu: Expected `bool`"),
        ("expected_gpus = true", "expected_gpus: Expected `int"),
        ("expected_gpus = -1", "expected_gpus: Expected `int` >= 0"),
        ("expected_gpus = 1.0", "expected_gpus: Expected `int"),
        ("verifier = []", "verifier: Expected `array` of length >= 1"),
        ('verifier = [""]', "verifier"),
        ('verifier = "nvattest"', "verifier: Expected `array`"),
        ('evidence_file = "evidence.json"', "evidence_file: must be an absolute path"),
        ("attest_gpu = ", "not TOML"),
        ("attest_gpu = true\nattest_gpu = false", "not TOML"),
    ],
)
def test_a_policy_that_is_not_one_is_misuse(machine: Machine, policy: str, said: str) -> None:
    path = machine.write_policy()
    command = machine.command("-o", "json")
    path.write_text(policy, encoding="utf-8")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{path}: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_misuse_is_told_from_a_refusal(machine: Machine) -> None:
    assert machine.gate("--policy", str(machine.folder / "nowhere.toml")).status == 2
    assert machine.gate("--simulate", "no-such-rack").status == 2
    assert machine.gate("--no-such-option").status == 2


def test_ready_is_never_set_for_cards_that_nobody_attested(machine: Machine) -> None:
    machine.policy["attest_gpu"] = False
    outcome = machine.gate("--set-ready")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert "--set-ready" in outcome.stderr


def test_the_text_report_has_a_line_per_check_and_the_verdict_last(machine: Machine, scripted_nvml: MakeNvml) -> None:
    done = subprocess.run(
        machine.command("--nvml-library", str(scripted_nvml("cards 1\n").path)), capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == list(CHECKS)
    assert lines[-1] == "boot gate: pass"


def test_a_pass_whose_report_is_lost_is_no_pass(bare_machine: Machine) -> None:
    with Path("/dev/full").open("w", encoding="ascii") as full:
        done = subprocess.run(bare_machine.command(), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "boot gate: refused: the report cannot be written: No space left on device\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_gate_that_is_stopped_is_shut_and_takes_its_verifier_along(machine: Machine, number: signal.Signals) -> None:
    started = machine.folder / "started"
    os.mkfifo(started)
    machine.does(f"open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(1000)")
    gate = subprocess.Popen(machine.command("-o", "json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    verifier = int(started.read_text(encoding="ascii"))
    gate.send_signal(number)
    stdout, stderr = gate.communicate(timeout=30)
    assert gate.returncode == 1
    assert stderr == f"boot gate: refused: stopped by {number.name}\n"
    assert json.loads(stdout)["verdict"] == "refused"
    assert not Path(f"/proc/{verifier}").exists()


def test_an_impatient_operator_leaves_no_verifier_behind_either(machine: Machine) -> None:
    started = machine.folder / "started"
    os.mkfifo(started)
    machine.does(f"open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(1000)")
    gate = subprocess.Popen(machine.command("-o", "json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    verifier = int(started.read_text(encoding="ascii"))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        gate.send_signal(number)
    gate.communicate(timeout=30)
    assert gate.returncode != 0
    assert not Path(f"/proc/{verifier}").exists()


def test_the_claims_are_counted_against_the_bus(machine: Machine, scripted_nvml: MakeNvml) -> None:
    machine.add_card("0001:01:00.0")
    library = str(scripted_nvml("cards 2\n").path)
    for claims, status in ((1, 1), (2, 0), (3, 1), (0, 1)):
        machine.answers(good_answer(claims))
        outcome = machine.gate("--nvml-library", library)
        assert (claims, outcome.status) == (claims, status)


@pytest.mark.parametrize(
    ("allowance", "change"),
    [("allow_debug", {"dbgstat": "enabled"}), ("allow_insecure_boot", {"secboot": False})],
)
def test_an_allowance_lets_exactly_its_own_fault_pass(
    machine: Machine, scripted_nvml: MakeNvml, allowance: str, change: dict[str, Any]
) -> None:
    library = str(scripted_nvml("cards 1\n").path)
    answer = good_answer()
    answer["claims"][0] |= change
    machine.answers(answer)
    refused = machine.gate("--nvml-library", library)
    assert (refused.status, allowance in refused.stderr) == (1, True)
    machine.policy |= {"allow_devtools": True, "allow_debug": True, "allow_insecure_boot": True} | {allowance: False}
    assert machine.gate("--nvml-library", library).status == 1
    machine.policy |= {"allow_devtools": False, "allow_debug": False, "allow_insecure_boot": False} | {allowance: True}
    assert machine.gate("--nvml-library", library).status == 0
