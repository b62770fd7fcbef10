"""Configuration: what is taken, what is refused and in which words, and what wins."""

from __future__ import annotations

import tomllib
import typing
from pathlib import Path
from types import NoneType

import msgspec
import pytest

from guest_contract.card_fields import DEFAULT_GROUPS, GROUPS
from guest_service.config import Flags, Group, GuestConfig, grpc_addresses, http_address, load_config
from guest_transport.addresses import TcpAddress, UnixAddress, VsockAddress
from guest_transport.errors import SettingsError

EXAMPLE = Path(__file__).parents[2] / "deploy" / "guest-service.example.toml"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def test_without_a_file_nothing_outside_the_guest_reaches_the_agent() -> None:
    config = load_config(None, Flags())
    assert grpc_addresses(config) == [UnixAddress("/run/guest-service/guest.sock")]
    assert http_address(config.http.listen) == TcpAddress("127.0.0.1", 8090)
    switches = config.http.public_sysinfo, config.http.public_logs, config.http.public_tcbinfo, config.http.public_containers
    assert switches == (False,) * 4


def test_every_key_of_the_file_arrives(tmp_path: Path) -> None:
    text = """
    [grpc]
    listen = ["vsock:any:8000", "127.0.0.1:0"]
    vsock_cids = [1, 2]
    [http]
    listen = "off"
    public_sysinfo = true
    public_logs = true
    public_tcbinfo = true
    public_containers = true
    host_names = ["guest1.example"]
    [gpu]
    sample_ttl_seconds = 1
    failure_backoff_seconds = 2.5
    sample_timeout_seconds = 3
    first_sample_timeout_seconds = 200
    refresh = "lazy"
    groups = ["processes"]
    process_names = true
    nvml_library = "/opt/libnvidia-ml.so.1"
    simulate = "h200"
    [host]
    sysfs_root = "/tmp/sys"
    procfs_root = "/tmp/proc"
    data_disks = ["/", "/data"]
    extra_interface_prefixes = ["ib"]
    kernel_log = "off"
    [identity]
    file = "/etc/identity.json"
    [power]
    allow_shutdown = false
    shutdown_command = ["poweroff", "-f"]
    [containers]
    socket = "/run/docker.sock"
    [dstack]
    enabled = false
    [log]
    format = "json"
    level = "debug"
    [tls]
    certificate = "/etc/guest-service/tls.crt"
    key = "/etc/guest-service/tls.key"
    client_authorities = "/etc/guest-service/proxies.ca"
    """
    config = load_config(write(tmp_path, text), Flags())
    assert msgspec.to_builtins(config) == tomllib.loads(text) | {
        "grpc": {"listen": ("vsock:any:8000", "127.0.0.1:0"), "vsock_cids": (1, 2)},
        "http": {**tomllib.loads(text)["http"], "host_names": ("guest1.example",)},
        "gpu": {**tomllib.loads(text)["gpu"], "groups": ("processes",)},
        "host": {**tomllib.loads(text)["host"], "data_disks": ("/", "/data"), "extra_interface_prefixes": ("ib",)},
        "power": {"allow_shutdown": False, "shutdown_command": ("poweroff", "-f")},
    }
    assert grpc_addresses(config) == [VsockAddress(0xFFFFFFFF, 8000), TcpAddress("127.0.0.1", 0)]


def test_the_example_is_whole_and_says_the_defaults() -> None:
    text = EXAMPLE.read_text()
    assert load_config(EXAMPLE, Flags()) == msgspec.structs.replace(
        GuestConfig(),
        grpc=msgspec.structs.replace(GuestConfig().grpc, listen=("vsock:any:8000", "unix:/run/guest-service/guest.sock")),
    )
    for table in msgspec.structs.fields(GuestConfig):
        assert f"[{table.name}]" in text
        shape = next(
            each for each in (table.type, *typing.get_args(table.type)) if isinstance(each, type) and each is not NoneType
        )
        for key in msgspec.structs.fields(shape):
            assert f"{key.name} = " in text, f"{table.name}.{key.name} is not in the example"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gpu", ["not TOML"]),
        ("[gpus]", ["gpus", "unknown"]),
        ("[grpc]\nvsock_cids = [4294967295]", ["grpc.vsock_cids", "<= 4294967294"]),
        ("[gpu]\ngroups = ['health', 'heath']", ["gpu.groups", "'heath'"]),
        ("[gpu]\ngroups = 'health'", ["gpu.groups", "array"]),
        ("[gpu]\nprocess_names = true", ["gpu.process_names", "the group 'processes' in gpu.groups"]),
        ("[gpu]\ngroups = ['processes']\nprocess_names = '/proc'", ["gpu.process_names", "bool"]),
        ("[gpu]\nttl = 1", ["gpu.ttl", "unknown"]),
        ("[gpu]\nsample_ttl_seconds = 0", ["gpu.sample_ttl_seconds", "> 0"]),
        ("[gpu]\nsample_ttl_seconds = -1.5", ["gpu.sample_ttl_seconds", "> 0"]),
        ("[gpu]\nsample_ttl_seconds = nan", ["gpu.sample_ttl_seconds", "finite"]),
        ("[gpu]\nsample_timeout_seconds = inf", ["gpu.sample_timeout_seconds", "finite"]),
        ("[gpu]\nsample_timeout_seconds = 1e9", ["gpu.sample_timeout_seconds", "3600"]),
        ("[gpu]\nfailure_backoff_seconds = true", ["gpu.failure_backoff_seconds", "float"]),
        ('[gpu]\nrefresh = "often"', ["gpu.refresh", "ahead", "lazy"]),
        ('[gpu]\nnvml_library = "libnvidia-ml.so"', ["gpu.nvml_library", "^/"]),
        ("[grpc]\nlisten = []", ["grpc.listen", "at least one"]),
        ('[grpc]\nlisten = "127.0.0.1:1"', ["grpc.listen", "array"]),
        ('[grpc]\nlisten = ["127.0.0.1:99999"]', ["grpc.listen", "99999", "port"]),
        ('[grpc]\nlisten = ["unix:/a", "unix:/a"]', ["grpc.listen", "unix:/a", "twice"]),
        ('[http]\nlisten = "vsock:any:1"', ["http.listen", "vsock", "off"]),
        ('[http]\nlisten = "On"', ["http.listen", "On"]),
        ("[http]\npublic_logs = 1", ["http.public_logs", "bool"]),
        ('[host]\ndata_disks = ["/", "data"]', ["host.data_disks[1]", "^/"]),
        ("[power]\nshutdown_command = []", ["power.shutdown_command", "length"]),
        ('[containers]\nsocket = "docker.sock"', ["containers.socket", "auto"]),
        ('[log]\nlevel = "loud"', ["log.level", "warning"]),
        ('[tls]\ncertificate = "/c"', ["tls.key", "missing"]),
        ('[tls]\ncertificate = "/c"\nkey = "/k"\nauthorities = "/a"', ["tls.authorities", "unknown"]),
    ],
)
def test_what_is_wrong_is_refused_in_one_line_with_file_key_and_what_is_allowed(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SettingsError) as error:
        load_config(path, Flags())
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = write(
        tmp_path, '[grpc]\nlisten = ["unix:/file"]\n[http]\nlisten = "off"\n[gpu]\nsimulate = "none"\n[log]\nformat = "text"\n'
    )
    flags = Flags(
        grpc=("unix:/flag", "[::1]:0"),
        http="[::1]:0",
        simulate="h200",
        sysfs=Path("/s"),
        procfs=Path("/p"),
        nvml_library=Path("/l.so"),
        log_format="json",
    )
    config = load_config(file, flags)
    assert grpc_addresses(config) == [UnixAddress("/flag"), TcpAddress("::1", 0)]
    assert http_address(config.http.listen) == TcpAddress("::1", 0)
    assert (config.gpu.simulate, config.gpu.nvml_library, config.log.format) == ("h200", "/l.so", "json")
    assert (config.host.sysfs_root, config.host.procfs_root) == ("/s", "/p")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (Flags(grpc=("localhost",)), ["--grpc", "localhost", "unix:/path"]),
        (Flags(http="vsock:any:1"), ["--http", "off"]),
    ],
)
def test_a_wrong_flag_is_named_as_a_flag(flags: Flags, words: list[str]) -> None:
    with pytest.raises(SettingsError) as error:
        load_config(None, flags)
    assert all(word in str(error.value) for word in words)


def test_a_wrong_file_is_refused_even_where_a_flag_wins(tmp_path: Path) -> None:
    file = write(tmp_path, '[grpc]\nlisten = ["nowhere"]')
    with pytest.raises(SettingsError, match=r"grpc\.listen"):
        load_config(file, Flags(grpc=("unix:/flag",)))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent.toml: cannot be read: No such file"):
        load_config(tmp_path / "absent.toml", Flags())


def test_the_groups_that_the_configuration_may_name_are_those_of_the_table() -> None:
    assert typing.get_args(Group) == GROUPS
    assert GuestConfig().gpu.groups == DEFAULT_GROUPS
