"""Rack files: what they may say, and that anything else is refused in one line that names the rack, the key and what is allowed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from guest_service.simulator import BUILT_IN_RACKS, RackError, load_rack
from guest_service.simulator.rack import parse_rack

FULL = """
driver_version = "570.172.08"
cc_enabled = true
cc_devtools = true
cc_ready = false
init_seconds = 0.25
fail_init = 18
jitter = true

[[card]]
index = 0
uuid = "GPU-a"
pci_bus_id = "0010A1B2:3b:1f.7"
utilization_gpu = 1
utilization_memory = 2
memory_total_bytes = 1000
memory_used_bytes = 100
memory_free_bytes = 800
temperature_c = 40
power_usage_mw = 79700
jitter = false
[card.fail]
device = 15
uuid = 999
pci_bus_id = 1
utilization = 3
memory = "hang"
temperature = 3
power = 3

[[card]]
"""


def test_every_key_of_a_full_rack_is_read() -> None:
    rack = parse_rack(FULL.encode(), "full")
    assert (rack.driver_version, rack.cc_enabled, rack.cc_devtools, rack.cc_ready) == ("570.172.08", True, True, False)
    assert (rack.init_seconds, rack.fail_init) == (0.25, 18)
    card = rack.cards[0]
    assert (card.uuid, card.pci_bus_id) == ("GPU-a", "0010A1B2:3b:1f.7")
    assert card.values == {
        "utilization_gpu": 1,
        "utilization_memory": 2,
        "memory_total_bytes": 1000,
        "memory_used_bytes": 100,
        "memory_free_bytes": 800,
        "temperature_c": 40,
        "power_usage_mw": 79700,
    }
    assert card.fail == {
        "device": 15,
        "uuid": 999,
        "pci_bus_id": 1,
        "utilization": 3,
        "memory": "hang",
        "temperature": 3,
        "power": 3,
    }
    assert [card.jitter for card in rack.cards] == [False, True]


def test_what_a_card_leaves_out_is_not_supported_and_its_names_are_its_own() -> None:
    cards = parse_rack(b"[[card]]\n[[card]]\n", "bare").cards
    assert [card.pci_bus_id for card in cards] == ["00000000:01:00.0", "00000000:02:00.0"]
    assert cards[0].uuid != cards[1].uuid
    assert cards[0].values == {}


def test_the_rack_of_the_documentation_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs/simulator.md").read_text(encoding="utf-8")
    toml = page.partition("```toml\n")[2].partition("```")[0]
    (card,) = parse_rack(toml.replace("# fail_init", "fail_init").encode(), "docs").cards
    assert (card.values["temperature_c"], card.fail) == (31, {"power": 3})


def test_free_memory_that_is_left_out_is_what_is_not_used() -> None:
    (card,) = parse_rack(b"[[card]]\nmemory_total_bytes = 10\nmemory_used_bytes = 4\n", "free").cards
    assert card.values["memory_free_bytes"] == 6


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ("speed = 1", "speed: unknown key; allowed are driver_version, cc_enabled, "),
        ("cc_devtools = true", "cc_devtools: needs cc_enabled; NVML answers both or none"),
        ("[[card]]\nnmae = 'x'", "card 0: nmae: unknown key; allowed are index, uuid, "),
        ("[[card]]\n[[card]]\n[card.fail]\nfan = 3", "card 1: fail.fan: unknown key; allowed are device, uuid, "),
        ("cc_enabled = 1", "cc_enabled: must be true or false, not 1"),
        ("jitter = 'yes'", "jitter: must be true or false, not 'yes'"),
        ("init_seconds = nan", "init_seconds: must be a number of seconds from 0 to 86400, not nan"),
        ("init_seconds = inf", "init_seconds: must be a number of seconds"),
        ("init_seconds = -1", "init_seconds: must be a number of seconds"),
        ("init_seconds = true", "init_seconds: must be a number of seconds"),
        ("fail_init = 0", "fail_init: must be a whole number from 1 to 999, not 0"),
        ("fail_init = 'hang'", "fail_init: must be a whole number"),
        ("driver_version = 570", "driver_version: must be 1 to 95 printable ASCII characters, not 570"),
        ("card = 3", "card: must be tables, written as [[card]]"),
        ("[card]\nuuid = 'x'", "card: must be tables, written as [[card]]"),
        ("[[card]]\n" * 65, "card: at most 64, not 65"),
        ("[[card]]\nindex = 1", "card 0: index: must be 0"),
        ("[[card]]\nuuid = ''", "card 0: uuid: must be 1 to 95 printable ASCII characters"),
        ("[[card]]\npci_bus_id = 'GPU'", "card 0: pci_bus_id: must be a PCI address as in 00000000:01:00.0, not 'GPU'"),
        (
            "[[card]]\nutilization_gpu = 101\nutilization_memory = 1",
            "card 0: utilization_gpu: must be a whole number from 0 to 100",
        ),
        ("[[card]]\nutilization_gpu = 1", "card 0: utilization_memory: missing"),
        ("[[card]]\nutilization_memory = 1", "card 0: utilization_gpu: missing"),
        ("[[card]]\ntemperature_c = -1", "card 0: temperature_c: must be a whole number from 0 to 200, not -1"),
        ("[[card]]\ntemperature_c = nan", "card 0: temperature_c: must be a whole number from 0 to 200, not nan"),
        ("[[card]]\ntemperature_c = true", "card 0: temperature_c: must be a whole number from 0 to 200, not true"),
        ("[[card]]\npower_usage_mw = 5000001", "card 0: power_usage_mw: must be a whole number from 0 to 5000000"),
        ("[[card]]\nmemory_used_bytes = 1", "card 0: memory_total_bytes: missing"),
        ("[[card]]\nmemory_total_bytes = 1", "card 0: memory_used_bytes: missing"),
        (
            "[[card]]\nmemory_total_bytes = 1\nmemory_used_bytes = 2",
            "card 0: memory_used_bytes: must be a whole number from 0 to 1",
        ),
        (
            "[[card]]\nmemory_total_bytes = 3\nmemory_used_bytes = 2\nmemory_free_bytes = 2",
            "card 0: memory_free_bytes: must be a whole number from 0 to 1",
        ),
        (
            "[[card]]\n[card.fail]\npower = 'hung'",
            "card 0: fail.power: must be an NVML code from 1 to 999 or \"hang\", not 'hung'",
        ),
        ("[[card]]\n[card.fail]\npower = 0", "card 0: fail.power: must be a whole number from 1 to 999"),
        ("[[card]]\nfail = 3", "card 0: fail: must be a table, not 3"),
        ("[[card]]\nuuid='a'\n[[card]]\nuuid='A'", "card: two cards have the same uuid"),
        ("[[card]]\npci_bus_id='01:00.0'\n[[card]]\npci_bus_id='01:00.0'", "card: two cards have the same pci_bus_id"),
        ("[[card]", "not TOML: "),
        (f"x = '{'y' * 500}'", "x: unknown key"),
        (f"driver_version = '{'y' * 500}'", "driver_version: must be"),
    ],
)
def test_a_rack_that_is_wrong_is_refused_in_one_line_that_names_the_key(toml: str, named: str) -> None:
    with pytest.raises(RackError) as refused:
        parse_rack(toml.encode(), "lab.toml")
    said = str(refused.value)
    assert said.startswith("rack lab.toml: ")
    assert named in said
    assert "\n" not in said
    assert len(said) < 400


def test_bytes_that_are_not_utf8_and_files_that_are_too_large_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RackError, match="not UTF-8 at byte 3"):
        parse_rack(b"x='\xff'", "lab.toml")
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(RackError, match="larger than"):
        load_rack(str(large))


def test_a_pipe_is_refused_at_once_because_each_sample_reads_the_rack_anew(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rack.toml")
    with pytest.raises(RackError, match="a pipe"):
        load_rack(str(tmp_path / "rack.toml"))


@pytest.mark.parametrize("toml", ["a = " + "[" * 5000, "init_seconds = 1" + "0" * 5000, "a" * 100_000 + " = 1"])
def test_a_rack_that_overwhelms_the_parser_is_refused_in_one_short_line(toml: str) -> None:
    with pytest.raises(RackError) as refused:
        parse_rack(toml.encode(), "lab.toml")
    assert str(refused.value).startswith("rack lab.toml: ")
    assert len(str(refused.value)) <= 600


@pytest.mark.parametrize("name", ["h100", "", "/nowhere/rack.toml", "H200", "h200\0"])
def test_a_rack_that_is_not_there_is_refused_with_the_built_in_names(name: str) -> None:
    with pytest.raises(
        RackError, match="neither one of h200, h200x8, no-driver, none, sick-h200x8 nor a file that can be read: "
    ):
        load_rack(name)


def test_a_built_in_name_wins_over_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "h200").write_text("")
    monkeypatch.chdir(tmp_path)
    assert len(load_rack("h200").cards) == 1
    assert len(load_rack("./h200").cards) == 0


def test_the_built_in_racks_are_what_their_names_say() -> None:
    racks = {name: load_rack(name) for name in BUILT_IN_RACKS}
    assert {name: (len(rack.cards), rack.driver_loaded) for name, rack in racks.items()} == {
        "h200": (1, True),
        "h200x8": (8, True),
        "no-driver": (1, False),
        "none": (0, True),
        "sick-h200x8": (8, True),
    }
    (h200,) = racks["h200"].cards
    assert (h200.values["memory_total_bytes"], h200.values["power_usage_mw"]) == (150754820096, 79700)
    assert (racks["h200"].cc_enabled, racks["h200"].cc_ready) == (True, True)
