"""Writes docs/configuration.md from the structs that read the files: every key with its type, its default, its flag, and what it is for.

What a key is for is the comment above it in the source, which a struct loses when it is made; so the source is read beside it.
A key without such a comment is an error here, and not an empty cell. Flags of the agent are found by trying: each is given to
load_config, and what then differs is its key. Rejected: a second text per key for the page (it would be the one that nobody
corrects).
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from guest_service.boot_gate.policy import Policy
from guest_service.config import Flags, GuestConfig, load_config
from guest_service.host_facts.identity import IdentityFile
from tools.markdown_text import cell, code, note, table
from vmm_proxy.config import ProxyConfig
from vmm_proxy.directory.entry import GuestSettings
from vmm_proxy.policy.tokens import TokenFile

FILE = Path(__file__).resolve().parent.parent / "docs/configuration.md"

_INTRODUCTION = (
    "# Configuration\n\n"
    + note("reference", "the structs that read the files")
    + """\
All files are TOML. They are checked once, as a whole, before anything starts: an unknown key, a wrong type or an impossible
value is refused in one line that names the file, the key and what is allowed, and `guest-service check-config` and `vmm-proxy
check-config` say the same without starting anything. Every table and every key may be left out unless it is *required*. Flags
win over the file. No environment variable changes a server; [guestctl](commands.md#guestctl) has some. *unset* is what a key
means that is left out; TOML has no word for it.

"""
)


@dataclass(frozen=True, slots=True)
class Page:
    """One kind of file, and what stands above its keys."""

    title: str
    introduction: str
    shape: type[msgspec.Struct]
    flags: Mapping[str, str]


def render() -> str:
    """The whole page."""
    return (_INTRODUCTION + "".join(_section(page) for page in pages())).rstrip("\n") + "\n"


def pages() -> tuple[Page, ...]:
    """The sections of the reference: one for each file."""
    return (
        Page(
            "The guest agent",
            """\
`/etc/guest-service/config.toml` where the packages put it, named by `--config`; with comments:
[guest-service.example.toml](../deploy/guest-service.example.toml). SIGHUP (`systemctl reload guest-service`) takes changes of
the four `public_…`
switches and of `log.level`; the rest waits for a restart, and the log says so.""",
            GuestConfig,
            agent_flags(),
        ),
        Page(
            "The identity of a guest",
            "What `identity.file` names: TOML, or JSON when it is named `*.json`.",
            IdentityFile,
            {},
        ),
        Page(
            "The boot gate's policy",
            """\
Named by `guest-service boot-gate --policy`; with comments: [boot-gate.example.toml](../deploy/boot-gate.example.toml). Every
default is the
strict answer. What is checked: [the boot gate](boot-gate.md).""",
            Policy,
            {},
        ),
        Page(
            "The proxy",
            """\
`/etc/vmm-proxy/config.toml` where the packages put it, named by `--config`; with comments:
[vmm-proxy.example.toml](../deploy/vmm-proxy.example.toml). SIGHUP (`systemctl reload vmm-proxy`) takes `access` and renewed
certificates; the rest
waits for a restart, and the log says so.""",
            ProxyConfig,
            PROXY_FLAGS,
        ),
        Page(
            "A guest's file",
            """\
One `*.toml` file per guest in the folder `directory.dir`, watched: a changed file is in force at once. A file that is wrong is
refused alone, and the
last good version of its guest stays. The keys are those of `[[guest]]` in the proxy's own file.""",
            GuestSettings,
            {},
        ),
        Page("The proxy's tokens", "What `access.token_file` names; see [access](access.md#tokens).", TokenFile, {}),
    )


# The proxy's flags say in their help which key they stand for; a test holds that each flag of `serve` is here or changes no key.
PROXY_FLAGS: Mapping[str, str] = {
    "grpc.listen": "--grpc",
    "http.listen": "--http",
    "guest[].id": "--guest",
    "guest[].address": "--guest",
}


def agent_flags() -> dict[str, str]:
    """The flag of each key of the agent that has one."""
    samples: Mapping[str, object] = {
        "grpc": ("unix:/elsewhere",), "http": "off", "simulate": "none", "sysfs": Path("/elsewhere"), "procfs": Path("/elsewhere"),
        "nvml_library": Path("/elsewhere"), "log_format": "json",
    }  # fmt: skip
    usual = _values(GuestConfig())
    found: dict[str, str] = {}
    for field in msgspec.structs.fields(Flags):
        changed = _values(load_config(None, Flags(**{field.name: samples[field.name]})))  # type: ignore[arg-type]  # each of its own type
        found |= {key: f"--{field.name.replace('_', '-')}" for key in usual if changed[key] != usual[key]}
    return found


def _values(config: msgspec.Struct) -> dict[str, object]:
    tables = {name: inner for name, inner in msgspec.to_builtins(config).items() if inner is not None}
    return {f"{name}.{key}": value for name, inner in tables.items() for key, value in inner.items()}


def _section(page: Page) -> str:
    rows = ([code(key.name), key.type, key.default, _meaning(key, page.flags)] for key in keys_of(page.shape))
    return f"## {page.title}\n\n{page.introduction}\n\n{table(('key', 'type', 'default', 'what it is for'), rows)}"


def _meaning(key: Key, flags: Mapping[str, str]) -> str:
    flag = f" Flag: {code(flags[key.name])}." if key.name in flags else ""
    return _linked(cell(key.comment)) + flag


def _linked(comment: str) -> str:
    """The pages that a comment names, as links."""
    return re.sub(r"\bdocs/([\w/-]+)\.md", r"[\1](\1.md)", comment)


@dataclass(frozen=True, slots=True)
class Key:
    """One key; type and default are Markdown already."""

    name: str
    type: str
    default: str
    comment: str


def keys_of(shape: type[msgspec.Struct], prefix: str = "") -> Iterator[Key]:
    """Each key in `shape` and in the tables below it, as a path with dots; raises ValueError for one that no comment explains."""
    comments = comments_above(shape)
    described = msgspec.inspect.type_info(shape)
    assert isinstance(described, msgspec.inspect.StructType)
    for field in described.fields:
        name = f"{prefix}{field.encode_name}"
        inner, many = _inner_table(field.type)
        if inner is not None:
            yield from keys_of(inner, f"{name}[]." if many else f"{name}.")
            continue
        if not comments[field.name]:
            raise ValueError(f"{shape.__module__}: {shape.__name__}.{field.name}: no comment above it says what it is for")
        yield Key(name, _type(field.type), _default(field), comments[field.name])


def comments_above(shape: type[msgspec.Struct]) -> dict[str, str]:
    """What the lines of comment directly above each field of `shape` say; empty where there are none."""
    source = textwrap.dedent(inspect.getsource(shape))
    lines = source.splitlines()
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for statement in body.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            comment: list[str] = []
            for line in reversed(lines[: statement.lineno - 1]):
                if not line.lstrip().startswith("#"):
                    break
                comment.insert(0, line.lstrip(" #"))
            found[statement.target.id] = " ".join(comment)
    return found


def _inner_table(kind: msgspec.inspect.Type) -> tuple[type[msgspec.Struct] | None, bool]:
    """The struct that a table, an optional table or an array of tables holds, and whether it is an array."""
    match kind:
        case msgspec.inspect.StructType():
            return kind.cls, False
        case msgspec.inspect.UnionType():
            return next((found for each in kind.types if (found := _inner_table(each))[0] is not None), (None, False))
        case msgspec.inspect.VarTupleType(item_type=msgspec.inspect.StructType() as inner):
            return inner.cls, True
    return None, False


def _type(kind: msgspec.inspect.Type) -> str:
    match kind:
        case msgspec.inspect.Metadata():
            return _type(kind.type)
        case msgspec.inspect.UnionType():
            return " or ".join(_type(each) for each in kind.types if not isinstance(each, msgspec.inspect.NoneType))
        case msgspec.inspect.BoolType():
            return "`true` or `false`"
        case msgspec.inspect.LiteralType():
            return " or ".join(code(json.dumps(value)) for value in kind.values)
        case msgspec.inspect.StrType():
            return _text(kind)
        case msgspec.inspect.IntType():
            return f"integer{_bounds(kind)}"
        case msgspec.inspect.FloatType():
            return f"number{_bounds(kind)}"
        case msgspec.inspect.VarTupleType():
            return f"list of {_type(kind.item_type)}"
        case msgspec.inspect.DictType():
            return f"table of {_type(kind.value_type)}"
    raise TypeError(f"no words yet for {kind}")


def _text(kind: msgspec.inspect.StrType) -> str:
    match kind.pattern:
        case "^/":
            return "absolute path"
        case str() as pattern if "\\" not in pattern:
            return f"text like {code(pattern)}"
    return f"text, at most {kind.max_length} characters" if kind.max_length else "text"


def _bounds(kind: msgspec.inspect.IntType | msgspec.inspect.FloatType) -> str:
    words = {"over": kind.gt, "from": kind.ge, "below": kind.lt, "up to": kind.le}
    said = [f"{word} {limit}" for word, limit in words.items() if limit is not None]
    return f", {' and '.join(said)}" if said else ""


def _default(field: msgspec.inspect.Field) -> str:
    if field.required:
        return "*required*"
    value = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
    if value is None:
        return "*unset*"
    return code(json.dumps(value, ensure_ascii=False))


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
