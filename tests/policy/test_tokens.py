"""Tokens: what is kept of them, and which files are trusted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_transport.errors import SettingsError
from tests.policy.callers import secret, token
from vmm_proxy.policy.roles import Role
from vmm_proxy.policy.tokens import holder, read_tokens, token_hash, token_sha256, valid_token

HASH = token_hash(secret("a"))


def entry(name: str = "a", hash_: str = HASH, role: str = "viewer", more: str = "") -> str:
    return f"[[token]]\nname = '{name}'\nhash = '{hash_}'\nrole = '{role}'\n{more}"


def file_with(folder: Path, text: str) -> Path:
    path = folder / "tokens.toml"
    path.write_text(text)
    path.chmod(0o640)
    return path


def test_a_token_is_found_by_its_hash_and_by_nothing_else() -> None:
    tokens = [token(name, Role.VIEWER) for name in "abc"]
    for known in tokens:
        assert holder(tokens, token_sha256(secret(known.name))) is known
    assert holder(tokens, token_sha256(secret("d"))) is None
    assert holder(tokens, tokens[0].sha256[:-1]) is None
    assert holder((), tokens[0].sha256) is None


@given(st.text(max_size=600))
def test_what_is_taken_for_a_token_is_long_printable_and_one_word(text: str) -> None:
    fit = 32 <= len(text) <= 512 and text.isascii() and text.isprintable() and " " not in text
    assert valid_token(text) == fit


def test_the_file_says_who_and_what_and_holds_no_token(tmp_path: Path) -> None:
    path = file_with(tmp_path, entry() + entry("b", token_hash(secret("b")), "operator", "guests = { tenant = 'blue' }\n"))
    first, second = read_tokens(path)
    assert (first.name, first.grant.role, dict(first.grant.labels)) == ("a", Role.VIEWER, {})
    assert (second.name, second.grant.role, dict(second.grant.labels)) == ("b", Role.OPERATOR, {"tenant": "blue"})
    assert secret("a") not in path.read_text()
    assert first.sha256 == token_sha256(secret("a"))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (entry(hash_=secret("a")), "token[0].hash: must be what vmm-proxy hash-token prints"),
        (entry(hash_=HASH.upper()), "token[0].hash"),
        (entry("a b"), "token[0].name"),
        (entry(role="root"), "token[0].role"),
        (entry(role="admin", more="guests = { a = 'b' }\n"), "token[0].guests: an admin keeps the whole directory"),
        (entry(more="guests = { 'a b' = 'b' }\n"), "token[0].guests: a key must be"),
        (entry() + entry(hash_=token_hash(secret("b"))), "one name stands there twice"),
        (entry() + entry("b"), "one hash stands there twice"),
        (entry(more="tokn = 1\n"), "token[0].tokn: unknown key"),
        ("[[token]\n", "not TOML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_one_line(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_tokens(file_with(tmp_path, text))
    assert place in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o660, 0o606, 0o666])
def test_a_file_that_others_may_write_is_not_believed(tmp_path: Path, mode: int) -> None:
    path = file_with(tmp_path, entry())
    path.chmod(mode)
    with pytest.raises(SettingsError, match="others may write"):
        read_tokens(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives a file to another user")
def test_a_file_of_another_user_is_not_believed(tmp_path: Path) -> None:
    path = file_with(tmp_path, entry())
    os.chown(path, 65534, 65534)
    with pytest.raises(SettingsError, match="belongs to user 65534"):
        read_tokens(path)


def hashed(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vmm_proxy", "hash-token"], input=text, capture_output=True, text=True, check=False, timeout=30
    )


def test_the_command_prints_what_the_file_takes(tmp_path: Path) -> None:
    done = hashed(f"{secret('a')}\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{HASH}\n", "")
    assert read_tokens(file_with(tmp_path, entry(hash_=done.stdout.strip())))


@pytest.mark.parametrize("text", ["", "short\n", "x" * 31, "x" * 513, "x" * 20_000, f"{'x' * 32} y\n", "ä" * 32])
def test_the_command_refuses_what_could_be_guessed_and_does_not_repeat_it(text: str) -> None:
    done = hashed(text)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hash-token: the token must be 32 to 512 printable ASCII characters without spaces\n"
