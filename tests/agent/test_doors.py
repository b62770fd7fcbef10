"""The doors of `guest-service` beside serve: help, version, inventory, misuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.agent import refused
from tests.inventory.sys_tree import SysTree

CARD = "0000:3b:00.0"


def tree(tmp_path: Path) -> SysTree:
    sys_tree = SysTree(tmp_path / "sys")
    sys_tree.add(CARD, driver="nvidia")
    sys_tree.add("0000:3b:00.4", driver="nvidia", physfn=CARD)
    sys_tree.add("10000:02:00.0", vendor=0x1AF4, device=0x1050, class_code=0x038000)
    return sys_tree


def test_the_inventory_in_json_is_what_scripts_rely_on(tmp_path: Path) -> None:
    done = refused("inventory", "--sysfs", str(tree(tmp_path).root), "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["total"], found["nvidia"]) == (2, 1)
    assert found["cards"][0] == {
        "pci_bus_id": CARD,
        "vendor": 0x10DE,
        "device": 0x2335,
        "class": 0x030200,
        "driver": "nvidia",
        "virtual_function": False,
    }
    assert [card["virtual_function"] for card in found["cards"]] == [False, True, False]
    assert found["cards"][2]["driver"] is None


def test_the_inventory_as_a_table_has_a_line_per_function_and_the_counts(tmp_path: Path) -> None:
    done = refused("inventory", "--sysfs", str(tree(tmp_path).root))
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    assert lines[1].split()[:5] == [CARD, "10de", "2335", "030200", "nvidia"]
    assert "10000:02:00.0" in lines[3]
    assert lines[4].startswith("2 display devices, 1 of NVIDIA")


def test_a_machine_without_cards_is_none_and_not_a_failure(tmp_path: Path) -> None:
    sys_tree = SysTree(tmp_path / "sys")
    done = refused("inventory", "--sysfs", str(sys_tree.root), "-o", "json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"total": 0, "nvidia": 0, "cards": []})
    assert refused("inventory", "--sysfs", str(sys_tree.root)).stdout.startswith("0 display devices")


def test_an_entry_that_cannot_be_read_is_status_1_and_named_and_the_cards_are_listed(tmp_path: Path) -> None:
    sys_tree = tree(tmp_path)
    (sys_tree.add("0000:99:00.0") / "vendor").write_text("")
    done = refused("inventory", "--sysfs", str(sys_tree.root))
    assert done.returncode == 1
    assert "0000:99:00.0/vendor" in done.stderr
    assert done.stdout.splitlines()[-1].startswith("2 display devices, 1 of NVIDIA, and 1 that cannot be read")


def test_a_bus_that_cannot_be_read_is_status_1_and_one_line(tmp_path: Path) -> None:
    done = refused("inventory", "--sysfs", str(tmp_path / "absent"), "-o", "json")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "absent" in done.stderr


def test_the_version_is_that_of_the_package() -> None:
    done = refused("--version")
    assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, "guest-service", "")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["serv"], "serv"),
        (["serve", "--gprc", "unix:/x"], "--gprc"),
        (["serve", "--log-format", "xml"], "json"),
        (["serve", "--grpc"], "--grpc"),
        (["serve", "--grpc", "localhost:99999", "--http", "off"], "99999"),
        (["serve", "--http", "nowhere"], "nowhere"),
        (["serve", "extra"], "extra"),
        (["inventory", "-o", "xml"], "table"),
        ([], "command"),
        (["serve", "--config", "/absent.toml"], "/absent.toml"),
        (["serve", "--simulate", "x\ny"], "x\\ny"),
    ],
)
def test_misuse_is_status_2_with_one_line_and_nothing_on_stdout(arguments: list[str], word: str) -> None:
    done = refused(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert word in done.stderr


@pytest.mark.parametrize("door", [["--help"], ["serve", "--help"], ["inventory", "--help"], ["--version"]])
def test_help_works_without_grpc_nvml_or_configuration(door: list[str]) -> None:
    program = (
        "import sys\nfor name in ('grpc', 'pynvml', 'google.protobuf', 'docker', 'uvicorn'): sys.modules[name] = None\n"
        f"from guest_service.cli import main\nsys.exit(main({door!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_lists_every_door_with_a_whole_sentence() -> None:
    done = refused("-h")
    for door in ("serve", "check-config", "gpu-info", "inventory", "boot-gate"):
        assert f"  {door} " in done.stdout
    assert "..." not in done.stdout.partition("Commands:")[2]


def test_a_configuration_that_can_be_served_is_said_to_be_right(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text('[grpc]\nlisten = ["vsock:any:8000"]\n[gpu]\nsimulate = "h200"\n')
    done = refused("check-config", "--config", str(config))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{config}: ok, gRPC on vsock:any:8000, HTTP on 127.0.0.1:8090\n"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('[grpc]\nlistne = ["vsock:any:8000"]', "listen"),
        ('[gpu]\nsimulate = "h300"', "h200x8"),
        ('[identity]\nfile = "/absent"', "/absent"),
    ],
)
def test_a_configuration_that_serve_would_refuse_is_status_2_and_one_line(tmp_path: Path, text: str, word: str) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(text)
    done = refused("check-config", "--config", str(config))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert word in done.stderr
