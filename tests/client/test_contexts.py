"""The file of contexts: what of it is used, what wins over it, how a bad one is refused, and that `use` changes one line."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from guest_client.guestctl.cli import run
from tests.client.fake_proxy import Fleet
from tests.client.in_process import output_of, refusal_of
from tests.client.test_completion import completed

Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GUESTCTL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def write(config_file: Path) -> Write:
    def write(text: str) -> Path:
        config_file.parent.mkdir(parents=True, exist_ok=True)
        config_file.write_text(text)
        return config_file

    return write


def _guests(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    return [guest["id"] for guest in json.loads(output_of(capsys, "list", "-o", "json", *arguments))["guests"]]


def test_the_current_context_says_which_proxy_is_asked_and_for_which_guests(
    capsys: pytest.CaptureFixture[str], write: Write, address: str
) -> None:
    write(f'current = "lab"\n[contexts.lab]\nproxy = "{address}"\nselector = "rack=b"\n')
    assert _guests(capsys) == ["vm2"]
    assert _guests(capsys, "vm1", "vm2") == ["vm1", "vm2"], "ids that are given are what is meant"
    assert _guests(capsys, "-l", "rack=a") == ["vm1"]
    assert _guests(capsys, "-l", "") == ["vm1", "vm2"], "an empty selector is that of nobody"
    assert "vm1: " not in output_of(capsys, "gpu")
    assert "vm1: " in output_of(capsys, "gpu", "--all")
    assert output_of(capsys, "health") == "no cards in 1 guest\n"


def test_without_a_selector_of_the_context_gpu_still_asks_which_guest(
    capsys: pytest.CaptureFixture[str], write: Write, address: str
) -> None:
    write(f'current = "lab"\n[contexts.lab]\nproxy = "{address}"\n')
    assert "which guest?" in refusal_of(capsys, 2, "gpu")


def test_flags_win_over_the_environment_and_the_environment_over_the_file(
    capsys: pytest.CaptureFixture[str], write: Write, address: str, monkeypatch: pytest.MonkeyPatch, fleet: Fleet, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("of-the-context")
    write(f'current = "lab"\n[contexts.lab]\nproxy = "unix:/nobody"\ntoken_file = "{token}"\nselector = "rack=b"\n')
    assert run(["list"]) == 4
    assert "unix:/nobody" in capsys.readouterr().err
    monkeypatch.setenv("GUESTCTL_PROXY", address)
    assert _guests(capsys) == ["vm1", "vm2"], "a selector is meant for the context's own proxy"
    assert "authorization" not in fleet.metadata, "and so is a token"
    monkeypatch.setenv("GUESTCTL_PROXY", "unix:/elsewhere")
    assert _guests(capsys, "--proxy", address) == ["vm1", "vm2"]
    assert "authorization" not in fleet.metadata
    assert run(["--context", "lab", "list"]) == 4
    assert "unix:/nobody" in capsys.readouterr().err, "a flag that names a context is a flag"
    assert _guests(capsys, "--context", "lab", "--proxy", address) == ["vm2"]
    assert fleet.metadata["authorization"] == "Bearer of-the-context"
    other = tmp_path / "other"
    other.write_text("of-the-environment")
    monkeypatch.setenv("GUESTCTL_TOKEN_FILE", str(other))
    _guests(capsys, "--context", "lab", "--proxy", address)
    assert fleet.metadata["authorization"] == "Bearer of-the-environment"
    _guests(capsys, "--context", "lab", "--proxy", address, "--token-file", str(token))
    assert fleet.metadata["authorization"] == "Bearer of-the-context"


def test_a_file_of_credentials_is_relative_to_the_file_of_contexts(
    capsys: pytest.CaptureFixture[str], write: Write, address: str, fleet: Fleet
) -> None:
    file = write(f'current = "lab"\n[contexts.lab]\nproxy = "{address}"\ntoken_file = "token"\n')
    (file.parent / "token").write_text("beside-it\n")
    _guests(capsys)
    assert fleet.metadata["authorization"] == "Bearer beside-it"


def test_a_guest_that_is_asked_directly_is_shown_nothing_of_a_context_and_a_bad_file_is_not_in_its_way(
    capsys: pytest.CaptureFixture[str], write: Write, address: str
) -> None:
    write("nonsense")
    assert "vm1" in output_of(capsys, "info", "--guest", address)
    assert _guests(capsys, "--proxy", address) == ["vm1", "vm2"]
    assert "exclude each other" in refusal_of(capsys, 2, "info", "--guest", address, "--context", "lab")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", ["not TOML"]),
        ("colour = 1", ["colour", "known here: contexts, current"]),
        ('current = "nix"\n[contexts.lab]', ["no context nix", "there is: lab", "[contexts.NAME]"]),
        ('[contexts.lab]\nproxi = "a"', ["contexts.lab: proxi", "did you mean proxy?"]),
        ('[contexts.lab]\nproxy = "nowhere"', ["contexts.lab: proxy: ", "use unix:/path"]),
        ('[contexts.lab]\nproxy = ["a=unix:/x", "a=unix:/y"]', ["contexts.lab: proxy: ", "two proxies called a"]),
        ('[contexts.lab]\nproxy = "unix:/x"\nhosts = "f"', ["contexts.lab", "leave one out"]),
        ('[contexts.lab]\nselector = "rack"', ["contexts.lab: selector: ", "no KEY=VALUE"]),
        ('[contexts.lab]\ntls = "yes"', ["contexts.lab: tls: ", "bool"]),
        ('[contexts.lab]\ntoken = "secret"', ["contexts.lab: token: ", "token_file names that"]),
        ('[contexts."a b"]', ["contexts.a b", "characters of [A-Za-z0-9._-]"]),
        ('current = "\\u001b[2J"\n[contexts.lab]', ["no context"]),
    ],
)
def test_a_bad_file_is_one_line_that_names_the_file_the_key_and_what_to_do(
    capsys: pytest.CaptureFixture[str], write: Write, text: str, said: list[str]
) -> None:
    file = write(text)
    for command in (["list"], ["context", "list"], ["context", "show"]):
        err = refusal_of(capsys, 2, *command)
        assert err.startswith(f"guestctl: {file}: ")
        assert all(part in err for part in said), err
        assert err.strip().isprintable()
    assert "secret" not in err


def test_contexts_are_listed_shown_and_used(capsys: pytest.CaptureFixture[str], write: Write) -> None:
    write('[contexts.lab]\nproxy = "h1:8443"\nca = "ca.pem"\n[contexts.two]\nproxy = ["a=unix:/a", "b=unix:/b"]\n')
    assert output_of(capsys, "context", "list").splitlines() == ["  lab  h1:8443", "  two  a=unix:/a, b=unix:/b"]
    assert "no context is used" in output_of(capsys, "context", "show")
    assert "lab" in output_of(capsys, "context", "use", "lab")
    assert output_of(capsys, "context", "list").startswith("* lab  ")
    assert output_of(capsys, "context", "show").splitlines() == ["lab (current)", "  proxy = h1:8443", "  ca = ca.pem"]
    assert output_of(capsys, "context", "show", "two").startswith("two\n")
    assert "no context nix; there is: lab, two" in refusal_of(capsys, 2, "context", "use", "nix")


def test_without_a_file_nothing_is_missed_and_use_says_what_to_write(
    capsys: pytest.CaptureFixture[str], config_file: Path
) -> None:
    assert output_of(capsys, "context", "list") == f"no contexts: write [contexts.NAME] with a proxy into {config_file}\n"
    assert "write it as [contexts.NAME]" in refusal_of(capsys, 2, "context", "use", "lab")
    assert not config_file.exists()


@pytest.mark.parametrize("head", ["", '# mine\ncurrent = "two" # for now\n', "current = 'two'\n"])
def test_use_changes_its_one_line_and_keeps_comments_and_the_mode_of_the_file(
    capsys: pytest.CaptureFixture[str], write: Write, head: str
) -> None:
    tables = '\n[contexts.lab] # a lab\nproxy = "h1:1"\n[contexts.two]\nproxy = "h2:1" # current = "two"\n'
    file = write(head + tables)
    file.chmod(0o640)
    output_of(capsys, "context", "use", "lab")
    after = file.read_text()
    assert after.endswith(tables)
    assert after.removesuffix(tables) == (head.replace('"two"', '"lab"').replace("'two'", '"lab"') or 'current = "lab"\n')
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_the_names_of_contexts_are_completed_and_ids_come_from_the_current_one(write: Write, address: str) -> None:
    write(f'current = "lab"\n[contexts.lab]\nproxy = "{address}"\n[contexts.larder]\n')
    assert completed("guestctl context use la") == (["lab", "larder"], "")
    assert completed("guestctl gpu v") == (["vm1", "vm2"], "")


@pytest.mark.parametrize("home", ["/dev/null", "/nobody", "x" * 300, "loop"])
def test_a_home_in_which_no_file_can_be_looked_for_has_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / home))
    assert output_of(capsys, "context", "list").startswith("no contexts: ")
    assert output_of(capsys, "context", "show").startswith("no context is used: ")
