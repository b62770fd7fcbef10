"""VirtualMachineInstances as KubeVirt's API shows them: the members of its documentation and types that a running instance has."""

from __future__ import annotations

import uuid
from typing import Any

# What JSON decodes to; an object of a cluster has members of any kind.
Object = dict[str, Any]

NODE = "gpu-node-1"
H200: Object = {"name": "gpu1", "deviceName": "nvidia.com/GH100_H200_SXM"}


def instance(
    name: str = "vm1",
    namespace: str = "tenant-blue",
    *,
    node: str = NODE,
    cid: object = 4_021_337_912,
    phase: str = "Running",
    labels: dict[str, str] | None = None,
    gpus: list[Object] | None = None,
    uid: str = "",
) -> Object:
    """An instance of a VM that was started by a VirtualMachine; `cid` None: without a vsock device."""
    uid = uid or str(uuid.uuid4())
    devices: Object = {
        "disks": [{"disk": {"bus": "virtio"}, "name": "root"}],
        "interfaces": [{"masquerade": {}, "name": "default"}],
        "rng": {},
    }
    if cid is not None:
        devices["autoattachVSOCK"] = True
    if gpus is not None:
        devices["gpus"] = gpus
    status: Object = {
        "activePods": {str(uuid.uuid4()): node},
        "conditions": [{"lastProbeTime": None, "lastTransitionTime": "2026-11-30T08:01:02Z", "status": "True", "type": "Ready"}],
        "guestOSInfo": {},
        "interfaces": [{"infoSource": "domain", "ipAddress": "10.244.1.7", "mac": "02:00:00:9c:11:22", "name": "default"}],
        "launcherContainerImageVersion": "quay.io/kubevirt/virt-launcher:v1.7.0",
        "migrationMethod": "BlockMigration",
        "nodeName": node,
        "phase": phase,
        "phaseTransitionTimestamps": [{"phase": "Pending", "phaseTransitionTimestamp": "2026-11-30T08:00:41Z"}],
        "qosClass": "Burstable",
        "runtimeUser": 107,
        "volumeStatus": [{"name": "root", "target": "vda"}],
    }
    if cid is not None:
        status["VSOCKCID"] = cid
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "annotations": {"kubevirt.io/latest-observed-api-version": "v1"},
            "creationTimestamp": "2026-11-30T08:00:40Z",
            "finalizers": ["kubevirt.io/virtualMachineControllerFinalize", "foregroundDeleteVirtualMachine"],
            "generation": 9,
            "labels": {"kubevirt.io/nodeName": node, "kubevirt.io/vm": name, **(labels or {})},
            "name": name,
            "namespace": namespace,
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "controller": True, "kind": "VirtualMachine", "name": name}],
            "uid": uid,
        },
        "spec": {
            "architecture": "amd64",
            "domain": {"cpu": {"cores": 16}, "devices": devices, "machine": {"type": "q35"}, "memory": {"guest": "64Gi"}},
            "terminationGracePeriodSeconds": 30,
            "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": f"{name}-root"}}],
        },
        "status": status,
    }


def moved(known: Object, node: str) -> Object:
    """`known` after a live migration to `node`: the same object and CID, another label."""
    metadata, status = known["metadata"], known["status"]
    return {
        **known,
        "metadata": {**metadata, "labels": {**metadata["labels"], "kubevirt.io/nodeName": node}},
        "status": {**status, "nodeName": node},
    }


def in_phase(known: Object, phase: str) -> Object:
    """`known` with another phase."""
    return {**known, "status": {**known["status"], "phase": phase}}
