"""Configuration files: whatever they hold, a frozen configuration or SettingsError in one line that names the file."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st

from guest_service.config import Flags, grpc_addresses, http_address, load_config
from guest_service.host_facts.identity import Identity
from guest_service.simulator.rack import load_rack
from guest_service.simulator.table import RackError
from guest_transport.errors import SettingsError
from guest_transport.process.logs import escape
from tests.fuzz.door import Door, one_line
from vmm_proxy.config import read_setup
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.directory.folder import FolderReader

# One line of a terminal's window is 200 characters; a message quotes keys and values cut to this in all.
MESSAGE_LIMIT = 1000
# What the contract allows as a guest's id: nothing in it leaves a file name, a log line or a label.
GUEST_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:-]{1,128}")


def _reading(name: str, read: Callable[[Path], object], refusal: type[Exception] = SettingsError) -> Callable[[bytes], None]:
    """A check that puts the bytes into a file `name` and reads it with the product."""

    def check(data: bytes) -> None:
        with tempfile.TemporaryDirectory(prefix="gs") as folder:
            file = Path(folder) / name
            file.write_bytes(data)
            try:
                read(file)
            except refusal as error:
                _refused(error, file)

    return check


def _refused(error: Exception, file: Path) -> None:
    # The commands escape what they print; the bound is the message's own.
    one_line(escape(str(error)), MESSAGE_LIMIT)
    assert str(file) in str(error), f"the file is not named: {error}"


def _agent(file: Path) -> None:
    config = load_config(file, Flags())
    assert grpc_addresses(config)
    http_address(config.http.listen)
    assert 0 < config.gpu.sample_timeout_seconds <= 3600
    assert all(text and "\0" not in text for text in config.power.shutdown_command)


def _identity(file: Path) -> None:
    info = Identity(version="1", file=file).info(show_tcb=True)
    assert max(len(info.app_id), len(info.instance_id), len(info.device_id)) <= 64
    info.SerializeToString()


def _rack(file: Path) -> None:
    load_rack(str(file))


def _proxy(file: Path) -> None:
    setup = read_setup(file)
    assert setup.listen
    assert len({guest.id for guest in setup.guests}) == len(setup.guests)
    assert all(GUEST_ID.fullmatch(guest.id) for guest in setup.guests)


def _guest(file: Path) -> None:
    found = FolderReader(file.parent, allow_plaintext=False).read()
    assert not isinstance(found, OSError), found
    [(name, what)] = found.items()
    assert name == file.name
    if isinstance(what, SettingsError):
        raise what
    assert isinstance(what, GuestEntry)
    assert GUEST_ID.fullmatch(what.id), what.id
    assert len(what.gpus) <= 64
    assert all(value.isprintable() for value in what.labels.values())


_TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["", "\0", "\u202e", "x" * 70_000, "/", "/etc/hostname", "off", "unix:/a", "127.0.0.1:0", "vsock:any:1", "0.0.0.0:1"]
    ),
)
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1, 2**64), st.floats(), _TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_TEXTS, inner, max_size=3)),
    max_leaves=6,
)


def _toml(value: object) -> str:
    """`value` in TOML's inline form; None has none and stands as a word that is an error."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value)
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)} = {_toml(inner)}" for key, inner in value.items()) + "}"
    return str(value)


def _files(tables: dict[str, tuple[str, ...]]) -> st.SearchStrategy[bytes]:
    """TOML files with the product's own tables and keys, each holding anything."""

    @st.composite
    def files(draw: st.DrawFn) -> bytes:
        lines = []
        for table, keys in draw(st.lists(st.sampled_from(sorted(tables.items())), max_size=3)):
            if table:
                lines.append(draw(st.sampled_from([f"[{table}]", f"[[{table}]]"])))
            lines += [f"{draw(st.sampled_from(keys))} = {_toml(draw(_VALUES))}" for _ in range(draw(st.integers(0, 3)))]
        return "\n".join(lines).encode("utf-8", "replace")

    return files()


_WORDS = (
    b"\n",
    b"=",
    b"[",
    b"]]",
    b'"',
    b'"""',
    b"\\u0000",
    b"\xff",
    b"nan",
    b"inf",
    b"[[" * 500,
    b"a." * 500 + b"b = 1\n",
    b"9" * 5000,
    b"{}",
)
_GUEST_KEYS = ("id", "address", "labels", "labels.a", "state", "instance_id", "gpus", "tls", "tls.authorities", "adress")

AGENT_CONFIG = Door(
    "agent-config",
    _reading("guest-service.toml", _agent),
    _files(
        {
            "grpc": ("listen", "vsock_cids"),
            "http": ("listen", "public_sysinfo", "public_logs"),
            "gpu": ("sample_ttl_seconds", "sample_timeout_seconds", "refresh", "nvml_library", "simulate"),
            "host": ("sysfs_root", "data_disks", "extra_interface_prefixes"),
            "power": ("allow_shutdown", "shutdown_command"),
            "containers": ("socket",),
            "log": ("format", "level"),
        }
    ),
    words=_WORDS,
    examples=60,
)
IDENTITY_FILE = Door(
    "identity-file",
    _reading("identity.json", _identity),
    st.dictionaries(
        st.sampled_from(["app_id", "instance_id", "device_id", "app_cert", "tcb_info", "x" * 2000, "\x1b"]),
        st.one_of(_TEXTS, st.sampled_from(["0x00ff", "zz", "\ud800", "ab" * 65]), _VALUES),
        max_size=4,
    ).map(lambda tree: json.dumps(tree).encode()),
    words=(*_WORDS, b"\\ud800", b"{" * 5000, b"0x"),
    examples=60,
)
RACK_FILE = Door(
    "rack-file",
    _reading("rack.toml", _rack, RackError),
    _files(
        {
            "": ("driver_version", "cc_enabled", "cc_ready", "init_seconds", "fail_init", "jitter"),
            "card": ("index", "uuid", "pci_bus_id", "utilization_gpu", "memory_total_bytes", "power_usage_mw", "fail"),
            "card.fail": ("device", "uuid", "memory", "power"),
        }
    ),
    words=_WORDS,
    examples=60,
)
PROXY_CONFIG = Door(
    "proxy-config",
    _reading("vmm-proxy.toml", _proxy),
    _files(
        {
            "grpc": ("listen", "allow_plaintext"),
            "http": ("listen", "target", "allow_public"),
            "metrics": ("labels", "containers"),
            "directory": ("dir", "registered_file"),
            "libvirt": ("uri", "port"),
            "kubevirt": ("node", "namespaces", "labels", "port", "kubeconfig"),
            "guest": _GUEST_KEYS,
            "access": ("token_file", "unix", "certificate"),
            "tls": ("certificate", "key", "client_authorities"),
            "guest_tls": ("authorities", "certificate", "key", "name"),
            "audit": ("file",),
        }
    ),
    words=_WORDS,
    examples=60,
)
GUEST_FILE = Door("guest-file", _reading("vm.toml", _guest), _files({"": _GUEST_KEYS}), words=_WORDS, examples=60)
