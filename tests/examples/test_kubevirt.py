"""What of KubeVirt's example can be judged without a cluster: that it is YAML of the shape that KubeVirt documents."""

from __future__ import annotations

import pytest
import yaml

from guest_transport.addresses import parse_address
from tests.examples.readme import EXAMPLES
from vmm_proxy.directory.directory import AddressTakenError, Directory, GuestEntry

FOLDER = EXAMPLES / "kubevirt"


def test_the_vm_has_a_vsock_device_where_kubevirt_looks_for_it_and_no_volume_is_missing() -> None:
    vm = yaml.safe_load((FOLDER / "vm.yaml").read_text(encoding="utf-8"))
    assert (vm["apiVersion"], vm["kind"]) == ("kubevirt.io/v1", "VirtualMachine")
    spec = vm["spec"]["template"]["spec"]
    assert spec["domain"]["devices"]["autoattachVSOCK"] is True
    assert {disk["name"] for disk in spec["domain"]["devices"]["disks"]} == {volume["name"] for volume in spec["volumes"]}


def test_the_example_says_what_to_do_where_the_proxy_refuses_a_second_vm_with_the_cid() -> None:
    directory = Directory([GuestEntry("vm1", parse_address("vsock:3:8000"))])
    with pytest.raises(AddressTakenError) as caught:
        directory.add(GuestEntry("vm2", parse_address("vsock:3:8000")))
    told = str(caught.value)
    assert "vsock namespaces" in told
    assert "unix:/path" in told
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert "its address belongs to the running guest" in told
    assert "`its address belongs to the running guest … already`" in readme
    assert 'address = "unix:/run/guests/vm1.sock"' in readme


def test_the_patch_names_the_gate_that_vsock_is_behind() -> None:
    patch = yaml.safe_load((FOLDER / "kubevirt.yaml").read_text(encoding="utf-8"))
    assert patch == {"spec": {"configuration": {"developerConfiguration": {"featureGates": ["VSOCK"]}}}}
