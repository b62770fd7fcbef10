"""What NVML says, through the real binding and loader on the scripted library, and through simulated racks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_service.boot_gate import nvml_witness
from guest_service.boot_gate.errors import GateStopError, RefusalError, UnreadableError
from guest_service.boot_gate.nvml_witness import NvmlWitness
from guest_service.boot_gate.policy import Policy
from guest_service.boot_gate.strict_json import parse_strict
from tests.boot_gate.conftest import MakeNvml
from tests.boot_gate.machine import Machine, good_answer

GOOD_STATE: dict[str, Any] = {
    "error": "",
    "environment": 2,
    "feature": 1,
    "devtools": 0,
    "ready": 1,
    "cards": [{"index": 0, "pci_bus_id": "00000000:01:00.0", "protected_bytes": 150754820096, "error": ""}],
}


def judge(tree: dict[str, Any], *, cards: int = 1, policy: Policy | None = None) -> None:
    """The gate's judgement of one answer, the ready state included."""
    state = nvml_witness.parse_state(parse_strict(json.dumps(tree).encode(), "NVML"))
    nvml_witness.judge_count(state, cards)
    nvml_witness.judge_cc_mode(state)
    nvml_witness.judge_devtools(state, policy or Policy())
    nvml_witness.judge_ready(state)


@pytest.mark.parametrize(
    ("script", "refused", "said"),
    [
        ("cards 1\n", None, ""),
        ("cards 2\n", "nvml_count", "sees 2 cards, and 1 are on the PCI bus"),
        ("cards 0\n", "nvml_count", "sees 0 cards, and 1 are on the PCI bus"),
        ("cards 1\nnvmlSystemGetConfComputeSettings - * set ccFeature=0\n", "cc_mode", "confidential computing is off"),
        (
            "cards 1\nnvmlSystemGetConfComputeSettings - * set ccFeature=2\n",
            "cc_mode",
            "in mode 2, which is not the confidential",
        ),
        (
            "cards 1\nnvmlSystemGetConfComputeSettings - * set ccFeature=4294967295\n",
            "cc_mode",
            "confidential computing is unknown",
        ),
        ("cards 1\nnvmlSystemGetConfComputeSettings - * set environment=1\n", "cc_mode", "not production"),
        ("cards 1\nnvmlSystemGetConfComputeSettings - * set devToolsMode=1\n", "devtools", "DevTools mode is on"),
        ("cards 1\nnvmlSystemGetConfComputeSettings - * keep\n", "cc_mode", "confidential computing"),
        ("cards 1\nnvmlSystemGetConfComputeSettings - * return 25\n", None, ""),
        (
            "cards 1\nnvmlSystemGetConfComputeSettings - * return 25\nnvmlSystemGetConfComputeState - * set devToolsMode=1\n",
            "devtools",
            "DevTools mode is on",
        ),
        (
            "cards 1\nnvmlSystemGetConfComputeSettings - * return 3\nnvmlSystemGetConfComputeState - * return 3\n",
            "cc_mode",
            "confidential computing is unknown",
        ),
        ("cards 1\nnvmlDeviceGetConfComputeMemSizeInfo 0 * set protectedMemSizeKib=0\n", "cc_mode", "is not in CC mode"),
        ("cards 1\nnvmlDeviceGetConfComputeMemSizeInfo 0 * return 3\n", "cc_mode", "Not Supported"),
        ("cards 1\nnvmlDeviceGetConfComputeMemSizeInfo 0 * keep\n", "cc_mode", "nothing was written"),
        ("cards 1\nnvmlDeviceGetHandleByIndex_v2 0 * return 15\n", "cc_mode", "GPU is lost"),
        ("cards 1\nnvmlInit_v2 - * return 9\n", "nvml_count", "Driver Not Loaded"),
        ("cards 1\nnvmlDeviceGetCount_v2 - * return 999\n", "nvml_count", "Unknown Error"),
        ("cards 1\nnvmlDeviceGetCount_v2 - * set count=4000000000\n", "nvml_count", "no machine has"),
        ("cards 1\nnvmlDeviceGetCount_v2 - * abort\n", "nvml_count", "ended by signal 6"),
        ('cards 1\nnvmlInit_v2 - * print {"error":""}\n', None, ""),
    ],
)
def test_what_nvml_says_decides(machine: Machine, scripted_nvml: MakeNvml, script: str, refused: str | None, said: str) -> None:
    outcome = machine.gate("--nvml-library", str(scripted_nvml(script).path))
    assert outcome.status == (0 if refused is None else 1), outcome.stderr
    if refused is not None:
        assert outcome.verdict(refused) == "refused"
        assert said in outcome.stderr


@pytest.mark.parametrize("missing", ["nvmlDeviceGetConfComputeMemSizeInfo", "nvmlDeviceGetCount_v2"])
def test_a_library_that_lacks_a_needed_function_is_a_refusal(machine: Machine, scripted_nvml: MakeNvml, missing: str) -> None:
    outcome = machine.gate("--nvml-library", str(scripted_nvml("cards 1\n", hide=[missing]).path))
    assert (outcome.status, "Function Not Found" in outcome.stderr) == (1, True)


def test_a_library_that_is_none_is_refused_in_the_loaders_words(machine: Machine, tmp_path: Path) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_text("not a library\n", encoding="ascii")
    outcome = machine.gate("--nvml-library", str(library))
    assert (outcome.status, "file too short" in outcome.stderr or "invalid ELF header" in outcome.stderr) == (1, True)


def test_the_second_card_counts_as_much_as_the_first(machine: Machine, scripted_nvml: MakeNvml) -> None:
    machine.add_card("0001:01:00.0")
    machine.answers(good_answer(2))
    script = "cards 2\nnvmlDeviceGetConfComputeMemSizeInfo 1 * set protectedMemSizeKib=0\n"
    outcome = machine.gate("--nvml-library", str(scripted_nvml(script).path))
    assert outcome.status == 1
    assert "card 1 (00000000:02:00.0): is not in CC mode" in outcome.stderr


def test_devtools_pass_where_the_policy_lets_them(machine: Machine, scripted_nvml: MakeNvml) -> None:
    library = str(scripted_nvml("cards 1\nnvmlSystemGetConfComputeSettings - * set devToolsMode=1\n").path)
    machine.policy["allow_devtools"] = True
    assert machine.gate("--nvml-library", library).status == 0
    scripted = scripted_nvml("cards 1\nnvmlSystemGetConfComputeSettings - * set devToolsMode=2\n")
    assert machine.gate("--nvml-library", str(scripted.path)).status == 1


def test_ready_is_set_after_everything_passed_and_only_when_asked(machine: Machine, scripted_nvml: MakeNvml) -> None:
    nvml = scripted_nvml("cards 1\n")
    assert machine.gate("--nvml-library", str(nvml.path)).status == 0
    assert nvml.calls("nvmlSystemSetConfComputeGpusReadyState") == 0
    outcome = machine.gate("--nvml-library", str(nvml.path), "--set-ready")
    assert (outcome.status, outcome.verdict("ready_state")) == (0, "pass")
    assert nvml.calls("nvmlSystemSetConfComputeGpusReadyState") == 1


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("nvmlSystemSetConfComputeGpusReadyState - * return 4", "Insufficient Permissions"),
        ("nvmlSystemGetConfComputeGpusReadyState - * set ready=0", "reads back as 0"),
        ("nvmlSystemGetConfComputeGpusReadyState - 2- set ready=0", "reads back as 0"),
        ("nvmlSystemGetConfComputeGpusReadyState - 2- return 999", "reads back as unknown"),
        ("nvmlSystemGetConfComputeSettings - 2- set devToolsMode=1", "DevTools mode is on"),
    ],
)
def test_a_ready_state_that_is_not_known_to_be_set_is_a_refusal(
    machine: Machine, scripted_nvml: MakeNvml, script: str, said: str
) -> None:
    outcome = machine.gate("--nvml-library", str(scripted_nvml(f"cards 1\n{script}\n").path), "--set-ready")
    assert (outcome.status, outcome.verdict("devtools"), outcome.verdict("ready_state")) == (1, "pass", "refused")
    assert said in outcome.stderr


@pytest.mark.parametrize("refusing", ["vendors", "claims", "cc_mode"])
def test_nothing_is_set_on_a_machine_that_is_refused(machine: Machine, scripted_nvml: MakeNvml, refusing: str) -> None:
    script = "cards 1\n"
    if refusing == "vendors":
        machine.add_card("0000:00:02.0", vendor=0x1234)
    elif refusing == "claims":
        machine.answers(good_answer(2))
    else:
        script += "nvmlDeviceGetConfComputeMemSizeInfo 0 * set protectedMemSizeKib=0\n"
    nvml = scripted_nvml(script)
    outcome = machine.gate("--nvml-library", str(nvml.path), "--set-ready")
    assert (outcome.status, outcome.verdict(refusing), outcome.verdict("ready_state")) == (1, "refused", "not_reached")
    assert nvml.calls("nvmlSystemSetConfComputeGpusReadyState") == 0


def test_a_driver_that_hangs_is_killed_and_refused(scripted_nvml: MakeNvml) -> None:
    nvml = scripted_nvml("cards 1\nnvmlInit_v2 - * ignore-sigterm\nnvmlInit_v2 - * hang\n")
    with pytest.raises(UnreadableError, match="NVML: no end after"):
        NvmlWitness(nvml_library=nvml.path, seconds=0.3).state()


def rack(folder: Path, text: str) -> str:
    path = folder / "rack.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


CARD = '[[card]]\npci_bus_id = "0000:01:00.0"\n'


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (f"cc_enabled = true\ncc_ready = true\n{CARD}", None),
        (f"cc_enabled = true\ncc_ready = false\n{CARD}", None),
        (f"cc_enabled = false\n{CARD}", "cc_mode"),
        (CARD, "cc_mode"),
        (f"cc_enabled = true\n{CARD}[card.fail]\ndevice = 15\n", "cc_mode"),
        (f"cc_enabled = true\nfail_init = 18\n{CARD}", "nvml_count"),
    ],
)
def test_a_rack_is_judged_like_a_machine(machine: Machine, tmp_path: Path, text: str, refused: str | None) -> None:
    outcome = machine.gate("--simulate", rack(tmp_path, text), "--set-ready")
    assert outcome.status == (0 if refused is None else 1), outcome.stderr
    if refused is not None:
        assert outcome.verdict(refused) == "refused"


@pytest.mark.parametrize(("name", "cards", "status"), [("h200", 1, 0), ("h200x8", 8, 0), ("none", 0, 0), ("no-driver", 1, 1)])
def test_a_built_in_rack_stands_for_the_bus_too(machine: Machine, name: str, cards: int, status: int) -> None:
    machine.answers(good_answer(cards))
    command = machine.command("-o", "json", "--simulate", name)
    at = command.index("--sysfs")
    done = subprocess.run([*command[:at], *command[at + 2 :]], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert json.loads(done.stdout)["evidence"]["inventory"]["nvidia"] == cards
    assert len(machine.runs) == (1 if cards else 0)


def test_the_question_process_refuses_what_it_does_not_know() -> None:
    for arguments in ([], ["write"], ["read", "--no-such"], ["read", "--simulate", "no-such-rack"]):
        done = subprocess.run(
            [sys.executable, "-I", "-m", "guest_service.collector.confidential", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr != ""


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)


@given(key=st.sampled_from(sorted(GOOD_STATE)), value=json_values)
def test_any_other_value_of_the_state_is_refused(key: str, value: object) -> None:
    if type(value) is type(GOOD_STATE[key]) and value == GOOD_STATE[key]:
        return
    with pytest.raises(GateStopError):
        judge(GOOD_STATE | {key: value})
    with pytest.raises(GateStopError):
        judge({name: held for name, held in GOOD_STATE.items() if name != key})


@given(key=st.sampled_from(["protected_bytes", "error", "index", "pci_bus_id"]), value=json_values)
def test_any_odd_value_of_a_card_is_refused(key: str, value: object) -> None:
    good = GOOD_STATE["cards"][0]
    fine = {"protected_bytes": type(value) is int and value > 0, "error": value == "", "index": type(value) is int}
    if fine.get(key, type(value) is str):
        judge(GOOD_STATE | {"cards": [good | {key: value}]})
    else:
        with pytest.raises(GateStopError):
            judge(GOOD_STATE | {"cards": [good | {key: value}]})


def test_unknown_devtools_are_refused_even_where_devtools_may_be_on() -> None:
    with pytest.raises(RefusalError, match="DevTools mode is unknown"):
        judge(GOOD_STATE | {"devtools": None}, policy=Policy(allow_devtools=True))
