"""What the pages say about configuration can be typed: each key that they name exists, and each piece of TOML is taken by what reads it."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from guest_client.guestctl import config as contexts
from guest_service.boot_gate.policy import Policy
from guest_service.config import GuestConfig
from guest_service.host_facts.identity import IdentityFile
from guest_service.simulator import RackError
from guest_service.simulator.rack import parse_rack
from guest_transport.errors import SettingsError
from guest_transport.settings.read import parse_settings
from tests.pages.test_pages import PAGES, ROOT
from tools.configuration_reference import keys_of
from vmm_proxy.config import ProxyConfig
from vmm_proxy.directory.entry import GuestSettings
from vmm_proxy.policy.tokens import TokenFile

SHAPES: tuple[type[msgspec.Struct], ...] = (GuestConfig, ProxyConfig, GuestSettings, TokenFile, Policy, IdentityFile)
READERS: Mapping[str, Callable[[bytes], object]] = {
    **{shape.__name__: functools.partial(parse_settings, where="page", shape=shape) for shape in SHAPES},
    "rack": functools.partial(parse_rack, name="page"),
    "contexts": contexts.parse,
}


def pieces_of_toml() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for indent, block in re.findall(r"^( *)```toml\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            yield page.name, re.sub(rf"^{indent}", "", block, flags=re.MULTILINE)


def readers_of(text: str) -> list[str]:
    """Who takes the piece; at least one must."""
    taken = []
    for name, read in READERS.items():
        try:
            read(text.encode())
        except (SettingsError, RackError):
            continue
        taken.append(name)
    return taken


@pytest.mark.parametrize(("page", "text"), sorted(set(pieces_of_toml())))
def test_a_piece_of_toml_on_a_page_is_taken_by_what_reads_such_files(page: str, text: str) -> None:
    assert tomllib.loads(text) is not None
    assert readers_of(text), f"{page}: nobody takes\n{text}"


def test_a_piece_with_a_key_that_is_not_there_is_taken_by_nobody() -> None:
    assert readers_of('[access]\ntoken_files = "/x"\n') == []
    assert readers_of("[[card]]\ntemperature = 3\n") == []
    assert {page for page, _ in pieces_of_toml()} >= {"access.md", "simulator.md", "running.md"}


# Options of gRPC's channels and servers, which are written like keys of the table [grpc].
GRPC_OPTIONS = {
    "grpc.enable_retries",
    "grpc.http.overload_protection",
    "grpc.keepalive_time_ms",
    "grpc.max_allowed_incoming_connections",
    "grpc.max_concurrent_streams",
}


@functools.cache
def known_keys() -> frozenset[str]:
    keys = {key.name.replace("[]", "") for shape in (GuestConfig, ProxyConfig, GuestSettings) for key in keys_of(shape)}
    return frozenset(keys | {key.rpartition(".")[0] for key in keys})


def keys_on(page: Path) -> Iterator[str]:
    """What looks like a key of a table that exists, between backquotes: `gpu.refresh`, `http.public_logs = true`."""
    tables = {key.partition(".")[0] for key in known_keys()}
    for said in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")):
        found = re.match(r"([a-z_]+)(\.[a-z_]+)+(?= *=|$)", said)
        if found and found[1] in tables and not re.search(r"\.(toml|json|md|py|service|socket|v1)$", found[0]):
            yield found[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_key_that_a_page_names_exists(page: Path) -> None:
    assert set(keys_on(page)) - known_keys() - GRPC_OPTIONS == set()


def test_pages_do_name_keys() -> None:
    assert {key for page in PAGES for key in keys_on(page)} >= {"gpu.nvml_library", "power.allow_shutdown", "access.socket_group"}
