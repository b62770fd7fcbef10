"""One VirtualMachineInstance as the API server shows it, and the directory's entry that is made of it.

Only what is needed is read: kubevirt.io/v1, staging/src/kubevirt.io/api/core/v1/types.go of KubeVirt. It refuses a CID that is no guest's,
and takes no label of the object that was not asked for. Rejected: following pods (virt-launcher is KubeVirt's own affair), and the
node of `status.nodeName` (no server selects by it; the label kubevirt.io/nodeName names the same node, and a server does).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from guest_contract.identifiers import valid_guest_id
from guest_transport.addresses import VSOCK_CIDS, VsockAddress
from guest_transport.errors import SettingsError
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.directory.entry import GPUS_LIMIT, LEAST_GUEST_CID
from vmm_proxy.directory.kubevirt.settings import KubevirtSetup
from vmm_proxy.directory.labels import shown_label

# What stands in GuestEntry.source.
SOURCE = "KubeVirt"
NODE_LABEL = "kubevirt.io/nodeName"
# Resources of this vendor are counted as cards: another maker's card would be missed in the guest for ever.
_CARDS = "nvidia.com/"


class Gpu(msgspec.Struct, frozen=True):
    """One of `spec.domain.devices.gpus`; no deviceName where a claim gives the device (DRA)."""

    device_name: str = msgspec.field(name="deviceName", default="")


class Devices(msgspec.Struct, frozen=True):
    """`spec.domain.devices`."""

    gpus: tuple[Gpu, ...] | None = None


class Domain(msgspec.Struct, frozen=True):
    """`spec.domain`."""

    devices: Devices = Devices()


class Spec(msgspec.Struct, frozen=True):
    """`spec`."""

    domain: Domain = Domain()


class Status(msgspec.Struct, frozen=True):
    """`status`."""

    phase: str = ""
    cid: int | None = msgspec.field(name="VSOCKCID", default=None)


class Metadata(msgspec.Struct, frozen=True):
    """`metadata`."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    labels: Mapping[str, str] | None = None


class Instance(msgspec.Struct, frozen=True):
    """A VirtualMachineInstance."""

    metadata: Metadata = Metadata()
    spec: Spec = Spec()
    status: Status = Status()


class State(enum.Enum):
    """What a phase means here."""

    NOT_YET = "not a guest yet"
    RUNNING = "a running guest"
    STOPPED = "a stopped guest"


# A phase that is not here is one of a later KubeVirt: no guest until it is known what it means.
_STATES = {
    "Running": State.RUNNING,
    # KubeVirt has lost the node's virt-handler, not the VM: whether it answers is seen by asking.
    "Unknown": State.RUNNING,
    "Succeeded": State.STOPPED,
    "Failed": State.STOPPED,
}


def state_of(phase: str) -> State:
    """What `status.phase` means; Pending, Scheduling, Scheduled and WaitingForSync have no VM on this node yet."""
    return _STATES.get(phase, State.NOT_YET)


def guest_id(metadata: Metadata) -> str:
    """`namespace.name`; a namespace has no dot, so no two are alike. The UID where that is longer than an id may be."""
    named = f"{metadata.namespace}.{metadata.name}"
    return named if valid_guest_id(named) else metadata.uid


def guest_of(instance: Instance, setup: KubevirtSetup) -> GuestEntry | None:
    """The directory's entry; None for an instance without a CID, or that does not run yet. Raises SettingsError."""
    state, cid = state_of(instance.status.phase), instance.status.cid
    if cid is None or state is State.NOT_YET:
        return None
    if not LEAST_GUEST_CID <= cid < VSOCK_CIDS["any"]:
        raise SettingsError(f"CID {cid} is no guest's; a guest has one from {LEAST_GUEST_CID} to {VSOCK_CIDS['any'] - 1}")
    identifier = guest_id(instance.metadata)
    if not valid_guest_id(identifier):
        raise SettingsError("it has neither a name nor a UID that can be a guest's id")
    return GuestEntry(
        id=identifier,
        address=VsockAddress(cid, setup.port),
        labels=_labels(instance.metadata, setup.labels),
        running=state is State.RUNNING,
        gpus_without_address=_cards(instance.spec.domain.devices.gpus or ()),
        # An instance is one run: a VM that is started again is another instance, and may have any CID, the old one too.
        run=instance.metadata.uid,
        source=SOURCE,
        yields=True,
    )


def _labels(metadata: Metadata, wanted: tuple[str, ...]) -> Mapping[str, str]:
    labels = metadata.labels or {}
    own = {"namespace": shown_label(metadata.namespace), "name": shown_label(metadata.name)}
    return own | {key: shown_label(labels[key]) for key in wanted if key in labels}


def _cards(gpus: tuple[Gpu, ...]) -> int:
    """How many cards the guest's driver should see; 0, not known, where one of them may be no card of NVIDIA's."""
    return min(len(gpus), GPUS_LIMIT) if all(gpu.device_name.startswith(_CARDS) for gpu in gpus) else 0
