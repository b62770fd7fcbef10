"""Every file of deploy/examples is judged by the program that it is for, or by what comes nearest to it here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from guest_transport.addresses import HvsockAddress, VsockAddress
from guest_transport.settings.read import read_settings
from tests.domains.libvirt_daemon import libvirt_modules, module_environment
from tests.examples.readme import BIN, EXAMPLES, copied, moved, typed
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.directory.entry import GuestSettings, guest_entry
from vmm_proxy.directory.libvirt.domain_xml import read_domain

# Who judges which file; a file that nobody judges fails a test below.
JUDGED = {
    "*/README.md": "tests/pages, and the tests of its commands",
    "README.md": "tests/pages",
    "mutual-tls/*": "test_mutual_tls.py, which runs all of it",
    "many-hosts/*": "test_many_hosts.py",
    "*/guest-service.toml": "guest-service check-config",
    "*/vmm-proxy.toml": "vmm-proxy check-config",
    "*/boot-gate.toml": "guest-service boot-gate",
    "*/guests.d/*.toml": "the proxy's reader of guests.d",
    "confidential-vm/identity.json": "guest-service check-config, beside the configuration that names it",
    "*/*.service.d/*.conf": "systemd-analyze verify",
    "*/modules-load.d/*.conf": "modinfo's names",
    "libvirt-vsock/domain.xml": "libvirt",
    "hybrid-vsock/firecracker.json": "the keys of Firecracker's documentation",
    "*/*.sh": "sh -n, and the VMM's own list of devices",
    "kubevirt/*.yaml": "a YAML parser",
}
FILES = sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*") if path.is_file())


def files(pattern: str) -> list[str]:
    found = [file for file in FILES if fnmatch(file, pattern) and not file.startswith("mutual-tls/")]
    assert found, pattern
    return found


@pytest.fixture
def root() -> Iterator[Path]:
    """The root of a machine that an example is copied to, with a short name for sockets."""
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        yield Path(folder)


def test_every_file_of_the_examples_is_judged_by_something() -> None:
    assert [file for file in FILES if not any(fnmatch(file, pattern) for pattern in JUDGED)] == []
    assert [pattern for pattern in JUDGED if not any(fnmatch(file, pattern) for file in FILES)] == []


@pytest.mark.parametrize("file", files("*/guest-service.toml"))
def test_the_agent_takes_its_configuration(file: str, root: Path) -> None:
    copied(Path(file).parts[0], root, root)
    if (root / "identity.json").exists():
        (root / "run").mkdir()
        (root / "identity.json").rename(root / "run/guest-identity.json")
    done = typed("guest-service check-config --config guest-service.toml", root)
    assert (done.returncode, done.stderr) == (0, "")
    assert "vsock:any:8000" in done.stdout


@pytest.mark.parametrize("file", files("*/vmm-proxy.toml"))
def test_the_proxy_takes_its_configuration(file: str, root: Path) -> None:
    copied(Path(file).parts[0], root, root)
    (root / "etc/vmm-proxy/guests.d").mkdir(parents=True)
    (root / "modules").mkdir()
    variables = module_environment(libvirt_modules(root / "modules"))
    setting = " ".join(f"{name}={value}" for name, value in variables.items())
    done = typed(f"{setting} vmm-proxy check-config --config vmm-proxy.toml", root)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("file", files("*/boot-gate.toml"))
def test_the_gate_takes_its_policy_and_asks_for_what_it_says(file: str, root: Path) -> None:
    text = moved((EXAMPLES / file).read_text(encoding="utf-8"), root)
    (root / "var/lib/guest-service").mkdir(parents=True)
    (root / "policy.toml").write_text(text, encoding="utf-8")
    for rack, refused_at in (("h200", "expected_gpus"), ("h200x8", "verifier")):
        done = typed(f"guest-service boot-gate --policy policy.toml --simulate {rack} -o json", root)
        report = json.loads(done.stdout)
        assert done.returncode == 1, done.stderr
        assert next(check["check"] for check in report["checks"] if check["verdict"] == "refused") == refused_at


def guest(file: str) -> GuestEntry:
    settings = read_settings(EXAMPLES / file, GuestSettings)
    return guest_entry(settings, f"{file}: ", source=file, allow_plaintext=False)


@pytest.mark.parametrize("file", files("*/guests.d/*.toml"))
def test_the_proxy_takes_a_guests_file_that_is_named_after_its_guest(file: str) -> None:
    entry = guest(file)
    assert entry.id == Path(file).stem
    assert isinstance(entry.address, HvsockAddress | VsockAddress)
    assert entry.address.port == 8000, "what the agents of the examples listen on"


def test_a_guest_is_dialled_where_its_vmm_was_told_to_listen() -> None:
    for vmm, sought in {
        "hybrid-vsock/firecracker.json": r'"uds_path": "(.*)"',
        "hybrid-vsock/cloud-hypervisor.sh": r"--vsock cid=\d+,socket=([^ ']+)",
        "libvirt-vsock/run-vm.sh": r"vhost-vsock-pci,guest-cid=(\d+)",
        "confidential-vm/README.md": r"vhost-vsock-pci,guest-cid=(\d+)",
    }.items():
        found = re.search(sought, (EXAMPLES / vmm).read_text(encoding="utf-8"))
        assert found, vmm
        addresses = [str(guest(file).address) for file in files(f"{Path(vmm).parts[0]}/guests.d/*.toml")]
        assert any(address.endswith(f":{found[1]}:8000") for address in addresses), (vmm, addresses)


KNOWN_TO_FIRECRACKER = {
    "boot-source": {"kernel_image_path", "boot_args", "initrd_path"},
    "drives": {
        "drive_id",
        "path_on_host",
        "is_root_device",
        "is_read_only",
        "partuuid",
        "cache_type",
        "io_engine",
        "rate_limiter",
    },
    "machine-config": {"vcpu_count", "mem_size_mib", "smt", "track_dirty_pages", "cpu_template", "huge_pages"},
    "vsock": {"guest_cid", "uds_path"},
}


def test_firecrackers_file_has_keys_that_it_knows_and_a_guests_cid() -> None:
    # Firecracker refuses unknown keys; its configuration file has no published schema, so these are the keys of its documentation.
    told = json.loads((EXAMPLES / "hybrid-vsock/firecracker.json").read_text(encoding="utf-8"))
    assert set(told) == set(KNOWN_TO_FIRECRACKER)
    for name, known in KNOWN_TO_FIRECRACKER.items():
        for part in told[name] if isinstance(told[name], list) else [told[name]]:
            assert set(part) <= known, name
    assert 3 <= told["vsock"]["guest_cid"] < 0xFFFFFFFF
    assert sum(drive["is_root_device"] for drive in told["drives"]) == 1


@pytest.mark.parametrize("script", [file for file in FILES if file.endswith(".sh")])
def test_a_script_can_be_run_and_the_shell_understands_it(script: str) -> None:
    path = EXAMPLES / script
    assert path.stat().st_mode & 0o111
    assert path.read_text(encoding="utf-8").startswith("#!/bin/sh\n")
    done = subprocess.run(["sh", "-n", path], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("qemu-system-x86_64") is None, reason="missing: qemu-system-x86_64 (Debian: qemu-system-x86)")
def test_qemu_knows_the_devices_of_its_script_and_their_options() -> None:
    devices = re.findall(r"-device ([\w-]+),([\w-]+)=", (EXAMPLES / "libvirt-vsock/run-vm.sh").read_text(encoding="utf-8"))
    assert len(devices) == 2
    for device, option in devices:
        told = subprocess.run(
            ["qemu-system-x86_64", "-device", f"{device},help"], check=False, capture_output=True, text=True, timeout=60
        )
        assert f"  {option}=<" in told.stdout, (device, option, told.stderr)


# libvirt's test driver takes domains of its own type only; what it checks the text against is the schema of all.
VALIDATE = """
import sys, libvirt
libvirt.registerErrorHandler(lambda *_: None, None)
connection = libvirt.open("test:///default")
text = sys.stdin.read().replace("<domain type='kvm'>", "<domain type='test'>")
try:
    domain = connection.defineXMLFlags(text, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
except libvirt.libvirtError as error:
    raise SystemExit(str(error))
print(domain.XMLDesc())
"""


def validated(xml: str, modules: Path) -> subprocess.CompletedProcess[str]:
    modules.mkdir()
    variables = module_environment(libvirt_modules(modules))
    return subprocess.run(
        [BIN / "python", "-c", VALIDATE], input=xml, env=variables, check=False, capture_output=True, text=True, timeout=60
    )


def test_libvirt_takes_the_domain_and_the_proxy_sees_its_vsock_and_its_card(root: Path) -> None:
    xml = (EXAMPLES / "libvirt-vsock/domain.xml").read_text(encoding="utf-8")
    done = validated(xml, root / "modules")
    assert done.returncode == 0, done.stderr
    started = done.stdout.replace("<cid auto='yes'/>", "<cid auto='yes' address='7'/>")
    facts = read_domain(started)
    assert (facts.cid, facts.host_pci) == (7, ("0000:3b:00.0",))
    broken = validated(xml.replace("<cid auto='yes'/>", "<cid automatic='yes'/>"), root / "more")
    assert broken.returncode != 0, "the schema is looked at"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="missing: systemd-analyze (Debian: systemd)")
def test_systemd_has_nothing_to_say_about_a_drop_in_beside_the_units(tmp_path: Path) -> None:
    for unit in (EXAMPLES.parent / "systemd").iterdir():
        (tmp_path / unit.name).write_text(_runnable(unit), encoding="utf-8")
    for name in ("app-compose", "guest-identity"):
        (tmp_path / f"{name}.service").write_text("[Service]\nType=oneshot\nExecStart=/bin/true\n", encoding="utf-8")
    drop_ins = files("*/*.service.d/*.conf")
    for file in drop_ins:
        target = tmp_path / Path(file).parent.name / Path(file).name
        target.parent.mkdir(exist_ok=True)
        target.write_text(_runnable(EXAMPLES / file), encoding="utf-8")
    assert _verified(tmp_path) == ""
    for file in drop_ins:
        target = tmp_path / Path(file).parent.name / Path(file).name
        whole = target.read_text(encoding="utf-8")
        target.write_text(whole + "NoSuchKeyAnywhere=yes\n", encoding="utf-8")
        assert "NoSuchKeyAnywhere" in _verified(tmp_path), f"{file} was not looked at"
        target.write_text(whole, encoding="utf-8")


def _runnable(unit: Path) -> str:
    return re.sub(r"/usr/bin/(guest-service|vmm-proxy)\b", "/bin/true", unit.read_text(encoding="utf-8"))


def _verified(folder: Path) -> str:
    # It exits 0 on keys that it does not know, so any word of it counts.
    units = sorted(str(path) for path in folder.iterdir() if path.is_file())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], check=False, capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr


def test_modules_that_are_loaded_at_boot_are_names_only() -> None:
    for file in files("*/modules-load.d/*.conf"):
        lines = [line for line in (EXAMPLES / file).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
        assert lines == ["vhost_vsock"]


@pytest.mark.parametrize("page", [file for file in FILES if file.endswith("/README.md")])
def test_what_a_page_installs_is_beside_it_or_was_made_by_its_first_step(page: str) -> None:
    text = (EXAMPLES / page).read_text(encoding="utf-8")
    made = {
        f"{name}{end}"
        for name in re.findall(r"make-certificates\.sh (?:server|client) \w+ (\w+)", text)
        for end in (".crt", ".key")
    }
    made |= {f"{name}.ca" for name in re.findall(r"make-certificates\.sh authority (\w+)", text)}
    installed = [line for line in text.splitlines() if line.startswith("install -D ")]
    # A cluster is given its files by kubectl, and installs nothing on a host.
    applied = re.findall(r"^kubectl .* (?:-f|--patch-file) (\S+)", text, re.MULTILINE)
    assert installed or applied, page
    assert [name for name in applied if not (EXAMPLES / page).parent.joinpath(name).is_file()] == []
    for line in installed:
        words = [word for word in line.removeprefix("install -D ").split() if not word.startswith("--group=")]
        assert words[:1] == ["-m"], line
        sources = words[2 : words.index("-t")] if "-t" in words else words[2:-1]
        assert sources, line
        assert [name for name in sources if name not in made and not (EXAMPLES / page).parent.joinpath(name).is_file()] == [], (
            line
        )
