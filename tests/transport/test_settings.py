"""Settings: each refusal is one line that names the file, the key and what is allowed."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_transport.errors import SettingsError
from guest_transport.settings.read import SETTINGS_LIMIT_BYTES, parse_settings, read_settings


class _State(enum.Enum):
    RUNNING = "running"
    STOPPED = "stopped"


class _Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    refresh: Literal["ahead", "lazy"] = "ahead"
    sample_ttl_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0


class _Guest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    state: _State = _State.RUNNING
    labels: dict[str, str] = {}
    gpus: tuple[str, ...] = ()


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    gpu: _Gpu | None = None
    guest: tuple[_Guest, ...] = ()


def _refusal(text: str | bytes) -> str:
    with pytest.raises(SettingsError) as refused:
        parse_settings(text if isinstance(text, bytes) else text.encode(), "/etc/x.toml", _Settings)
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu.refresh = 'eager'", "/etc/x.toml: gpu.refresh: Invalid value 'eager'; allowed: 'ahead', 'lazy'"),
        (
            "[[guest]]\nid='a'\n[[guest]]\nid='b'\nstate='paused'",
            "/etc/x.toml: guest[1].state: Invalid value 'paused'; allowed: 'running', 'stopped'",
        ),
        ("gpu.refresh = 'a - at `$.x`'", "/etc/x.toml: gpu.refresh: Invalid value 'a - at `$.x`'; allowed: 'ahead', 'lazy'"),
        ("gpu.sample_ttl_seconds = 0", "/etc/x.toml: gpu.sample_ttl_seconds: Expected `float` > 0.0"),
        ("gpu.sample_ttl_seconds = nan", "/etc/x.toml: gpu.sample_ttl_seconds: must be a finite number"),
        ("guest = [{id='a', gpus=[inf]}]", "/etc/x.toml: guest[0].gpus[0]: must be a finite number"),
        ("gpu.sample_ttl_seconds = '5'", "/etc/x.toml: gpu.sample_ttl_seconds: Expected `float`, got `str`"),
        ("gpu.sample_ttl_seconds = true", "/etc/x.toml: gpu.sample_ttl_seconds: Expected `float`, got `bool`"),
        ("gpu.sample_ttl = 5", "/etc/x.toml: gpu.sample_ttl: unknown key; did you mean sample_ttl_seconds?"),
        ("gqu.refresh = 'ahead'", "/etc/x.toml: gqu: unknown key; did you mean gpu?"),
        ("zzz = 1", "/etc/x.toml: zzz: unknown key; known here: gpu, guest"),
        ("[[guest]]\nid='a'\nzzz=1", "/etc/x.toml: guest[0].zzz: unknown key; known here: gpus, id, labels, state"),
        ("[[guest]]", "/etc/x.toml: guest[0].id: missing"),
        ("guest = 3", "/etc/x.toml: guest: Expected `array`, got `int`"),
        ("guest = [3]", "/etc/x.toml: guest[0]: Expected `object`, got `int`"),
        ("guest = [{id='a', labels={k=1}}]", "/etc/x.toml: guest[0].labels[...]: Expected `str`, got `int`"),
        ("guest = [{id='a', gpus=['x', 1]}]", "/etc/x.toml: guest[0].gpus[1]: Expected `str`, got `int`"),
        ("a = 1\na = 2", "/etc/x.toml: not TOML: Cannot overwrite a value (at end of document)"),
        ("gpu = {refresh = 'ahead'}\n[gpu]", "/etc/x.toml: not TOML: Cannot declare ('gpu',) twice (at line 2, column 5)"),
        (b"a = '\xff'", "/etc/x.toml: not UTF-8 at byte 5"),
        ("a = " + "[" * 5000, "/etc/x.toml: not TOML that can be read: nested too deeply"),
        ('"a\\nb" = 1', "/etc/x.toml: a\\nb: unknown key; known here: gpu, guest"),
        ("guest = [{id='a', gpus=['x', \"/x\\u0000\"]}]", "/etc/x.toml: guest[0].gpus[1]: must not have a NUL character"),
    ],
)
def test_a_refusal_names_file_key_and_what_is_allowed(text: str | bytes, message: str) -> None:
    assert _refusal(text) == message


def test_a_number_with_too_many_digits_is_refused_not_a_crash() -> None:
    assert _refusal("a = " + "1" * 5000).startswith("/etc/x.toml: not TOML: ")


def test_a_refusal_is_short_whatever_the_value() -> None:
    assert len(_refusal(f"gpu.refresh = '{'x' * 100_000}'")) < 1000


@pytest.mark.parametrize("names", [101, 1000, 30_000])
@pytest.mark.parametrize("text", ["labels.{}b = 1", "[{}b]", "[[{}b]]", "x = {{{}b = 1}}", 'x = {{"\'" = 1, {}b = 1}}'])
@pytest.mark.parametrize("name", ["a.", '"a" .\t', "'.' . ", '"\\"" . '])
def test_a_key_of_a_thousand_names_is_refused_before_it_takes_memory_or_the_stack(text: str, name: str, names: int) -> None:
    assert "a key of more than 100 names" in _refusal(text.format(name * names))


def test_dots_in_a_value_are_no_names() -> None:
    text = f"# {'.' * 500}\n[[guest]]\nid = '{'…. ' * 300}'\nlabels = {{a = '1.2.3.4', b = '{'.' * 300}'}}\n"
    assert parse_settings(text.encode(), "x", _Settings).guest[0].labels["b"] == "." * 300


@given(st.binary())
def test_any_bytes_are_settings_or_a_refusal_of_one_line(data: bytes) -> None:
    refusal = ""
    try:
        parse_settings(data, "x", _Settings)
    except SettingsError as error:
        refusal = str(error)
    assert refusal.isprintable()


def test_what_is_right_is_read_and_the_rest_keeps_its_default(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("gpu.refresh = 'lazy'\n[[guest]]\nid = 'a'\nlabels = {team = 'x'}\n")
    assert read_settings(file, _Settings) == _Settings(gpu=_Gpu(refresh="lazy"), guest=(_Guest("a", labels={"team": "x"}),))


def test_the_null_device_is_an_empty_file() -> None:
    assert read_settings(Path(os.devnull), _Settings) == _Settings()


def test_a_terminal_at_which_nobody_types_is_refused_at_once() -> None:
    ours, theirs = os.openpty()
    try:
        with pytest.raises(SettingsError, match="holds nothing now"):
            read_settings(Path(os.ttyname(theirs)), _Settings)
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "nul", "large", "loop"])
def test_what_is_no_readable_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "c.toml"
    match kind:
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "nul":
            path = Path(f"{path}\0")
        case "large":
            path.write_bytes(b"#" * (SETTINGS_LIMIT_BYTES + 1))
        case "loop":
            path.symlink_to(path)
    with pytest.raises(SettingsError) as refused:
        read_settings(path, _Settings)
    assert str(refused.value).isprintable()
    assert "c.toml" in str(refused.value)
    assert refused.value.exit_status == 2
