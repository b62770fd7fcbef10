"""From a VirtualMachineInstance to a guest: each member that counts, in a table."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from guest_transport.addresses import VsockAddress
from guest_transport.errors import SettingsError
from tests.kubevirt.objects import H200, Object, in_phase, instance, moved
from vmm_proxy.config import read_setup
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.directory.kubevirt.instance import Instance, guest_of
from vmm_proxy.directory.kubevirt.settings import KubevirtSetup

SETUP = KubevirtSetup("gpu-node-1", (), ("tenant", "app.kubernetes.io/name"), 8000, None)
UID = "5b2c7cbd-6a0e-4d43-9f5d-0c1a5f1f4f11"


def guest(known: Object, setup: KubevirtSetup = SETUP) -> GuestEntry | None:
    return guest_of(msgspec.json.decode(json.dumps(known), type=Instance), setup)


@pytest.mark.parametrize(
    ("known", "entry"),
    [
        pytest.param(instance(uid=UID, cid=42), ("tenant-blue.vm1", 42, True, None), id="running"),
        pytest.param(instance(uid=UID, cid=4_294_967_294), ("tenant-blue.vm1", 4_294_967_294, True, None), id="highest-cid"),
        pytest.param(instance(uid=UID, phase="Unknown", cid=42), ("tenant-blue.vm1", 42, True, None), id="virt-handler-lost"),
        pytest.param(instance(uid=UID, phase="Succeeded", cid=42), ("tenant-blue.vm1", 42, False, None), id="shut-down"),
        pytest.param(instance(uid=UID, phase="Failed", cid=42), ("tenant-blue.vm1", 42, False, None), id="crashed"),
        pytest.param(instance("a.b", "c", uid=UID, cid=42), ("c.a.b", 42, True, None), id="name-with-dots"),
        pytest.param(instance("v" * 200, uid=UID, cid=42), (UID, 42, True, None), id="name-longer-than-an-id"),
        pytest.param(instance(uid=UID, cid=42, gpus=[H200] * 8), ("tenant-blue.vm1", 42, True, 8), id="eight-cards"),
        pytest.param(instance(uid=UID, cid=42, gpus=[]), ("tenant-blue.vm1", 42, True, None), id="an-empty-list-of-cards"),
        pytest.param(
            instance(uid=UID, cid=42, gpus=[H200, {"name": "g", "deviceName": "amd.com/MI300X"}]),
            ("tenant-blue.vm1", 42, True, None),
            id="another-maker's-card-makes-the-number-unknown",
        ),
        pytest.param(
            instance(uid=UID, cid=42, gpus=[{"name": "g", "claimName": "c", "requestName": "r"}]),
            ("tenant-blue.vm1", 42, True, None),
            id="a-claimed-card-makes-the-number-unknown",
        ),
    ],
)
def test_an_instance_with_a_cid_is_a_guest(known: Object, entry: tuple[str, int, bool, int | None]) -> None:
    made = guest(known)
    assert made is not None
    identifier, cid, running, gpus = entry
    assert (made.id, made.address, made.running, made.gpus_given) == (identifier, VsockAddress(cid, 8000), running, gpus)
    assert (made.run, made.source, made.yields, made.gpus) == (UID, "KubeVirt", True, ())


@pytest.mark.parametrize("phase", ["", "Pending", "Scheduling", "Scheduled", "WaitingForSync", "APhaseOfALaterKubeVirt"])
def test_an_instance_that_does_not_run_yet_is_no_guest(phase: str) -> None:
    assert guest(instance(phase=phase)) is None


def test_an_instance_without_a_vsock_device_is_no_guest() -> None:
    assert guest(instance(cid=None)) is None
    assert guest(in_phase(instance(cid=None), "Succeeded")) is None


@pytest.mark.parametrize("cid", [0, 1, 2, 0xFFFFFFFF, -1, 2**40])
def test_a_cid_that_is_the_hosts_or_nobodys_is_refused(cid: int) -> None:
    with pytest.raises(SettingsError, match="no guest's"):
        guest(instance(cid=cid))


def test_only_labels_that_were_asked_for_are_taken_and_each_is_printable() -> None:
    made = guest(instance(labels={"tenant": "blue", "app.kubernetes.io/name": "\u202eevil", "secret": "x"}))
    assert made is not None
    assert made.labels == {"namespace": "tenant-blue", "name": "vm1", "tenant": "blue", "app.kubernetes.io/name": "\\u202eevil"}


def test_an_instance_that_moved_is_the_same_guest_with_the_same_cid() -> None:
    known = instance()
    assert guest(known) == guest(moved(known, "other"))


def test_a_vm_that_was_started_again_is_another_run_though_it_has_the_old_cid() -> None:
    before, after = guest(instance(cid=42)), guest(instance(cid=42))
    assert before is not None
    assert after is not None
    assert not before.same_vm(after)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node = 'Node_1'", "kubevirt.node: 'Node_1' is no name of a node"),
        (f"node = '{'n' * 64}'", "is no name of a node, or longer than the 63 characters"),
        ("node = 'env:NODE_NAME'", "kubevirt.node: the environment variable 'NODE_NAME' is not set; a pod gets it by fieldRef"),
        ("node = 'n'\nport = 0", "kubevirt.port: must be from 1"),
        ("node = 'n'\nnamespaces = ['a/b']", "kubevirt.namespaces: 'a/b' is no name of a namespace"),
        ("node = 'n'\nnamespaces = [" + "'a'," * 65 + "]", "kubevirt.namespaces: at most 64"),
        ("node = 'n'\nlabels = ['name']", "kubevirt.labels: 'name' would be one Prometheus label with 'name'"),
        ("node = 'n'\nlabels = ['a.b', 'a/b']", "kubevirt.labels: 'a/b' would be one Prometheus label with 'a.b'"),
        ("node = 'n'\nlabels = ['ü']", "kubevirt.labels: a key must be"),
        ("node = 'n'\nlabels = [" + ",".join(f"'l{number}'" for number in range(31)) + "]", "at most 30 labels"),
        ("node = 'n'\nkubeconfig = 'k'", "kubevirt.kubeconfig: must be an absolute path, not 'k'"),
        ("nodes = 'n'", "kubevirt.nodes: unknown key"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[kubevirt]\n{text}\n")
    with pytest.raises(SettingsError) as refused:
        read_setup(file, environment={})
    assert message in str(refused.value)


def test_the_node_may_come_from_the_environment_and_without_one_nothing_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[kubevirt]\nnode = 'env:NODE_NAME'\nnamespaces = ['a', 'b', 'a']\n")
    setup = read_setup(file, environment={"NODE_NAME": "gpu-node-1.example"}).kubevirt
    assert setup is not None
    assert (setup.node, setup.namespaces) == ("gpu-node-1.example", ("a", "b"))
    file.write_text("[kubevirt]\nport = 9000\n")
    assert read_setup(file, environment={}).kubevirt is None
