"""Every metric family that Guestscope serves, once: a name, its kind, its labels, its help.

Pages, docs/metrics.md and tests are made from this table, because a family whose name lives in two places gets renamed in one of them,
and a renamed metric breaks dashboards of people who never hear of it. The families of a card's values are made from the rows of
guest_contract.card_fields. It refuses to know where values come from. Rejected: declaring families beside the code that fills them (the
order on the page, the reference and the proxy's copy would each be kept by hand).

Order here is the order on a page. Labels that a proxy puts in front (`vm_id`, `vm_…`) are not listed: a family holds for one guest.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from guest_contract.card_fields import BASE, HEALTH, IDENTITY, MIG, OF_GUEST, ROWS
from guest_contract.card_row import Field


class Kind(enum.Enum):
    """What a family is. INFO is a gauge that is always 1 in the 0.0.4 format, which has no kind of its own for it."""

    GAUGE = "gauge"
    COUNTER = "counter"
    INFO = "info"
    HISTOGRAM = "histogram"


# Units that OpenMetrics is told about: the last word of a name, when it is one of these.
UNITS = ("bytes", "seconds", "ratio", "celsius", "percent", "milliwatts", "watts", "hertz", "joules")


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family. `name` is what stands on a sample line (of a histogram: without _bucket, _sum, _count); `group` is what chooses it
    on a page: that of its card values, BASE for everything else."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    group: str = BASE

    @property
    def openmetrics_name(self) -> str:
        """The family's name in OpenMetrics, where `_total` and `_info` belong to the sample."""
        suffix = {Kind.COUNTER: "_total", Kind.INFO: "_info"}.get(self.kind, "")
        return self.name.removesuffix(suffix)

    @property
    def unit(self) -> str:
        """The unit in the name, or empty."""
        word = self.openmetrics_name.rpartition("_")[2]
        return word if word in UNITS and self.kind is not Kind.INFO else ""


def _gauge(name: str, text: str, *labels: str, group: str = BASE) -> Family:
    return Family(name, Kind.GAUGE, text, labels, group)


def _counter(name: str, text: str, *labels: str, group: str = BASE) -> Family:
    return Family(name, Kind.COUNTER, text, labels, group)


def _info(name: str, text: str, *labels: str) -> Family:
    return Family(name, Kind.INFO, text, labels)


def card_families(rows: Iterable[Field], card_labels: tuple[str, ...]) -> dict[str, Family]:
    """The family of each row that has one; raises ValueError for a family that rows of two groups fill."""
    metrics = [(row, row.metric) for row in rows if row.metric is not None]
    labels: dict[str, dict[str, None]] = {}
    for _, metric in metrics:
        own = [*(name for name, _ in metric.labels), *filter(None, [metric.each])]
        labels.setdefault(metric.name, {}).update(dict.fromkeys(own))
    made: dict[str, Family] = {}
    for row, metric in metrics:
        family = Family(metric.name, Kind(metric.kind), metric.help, (*card_labels, *labels[metric.name]), row.group)
        if made.setdefault(metric.name, family).group != row.group:
            raise ValueError(f"{row.name}: {metric.name} is of the group {made[metric.name].group}, not of {row.group}")
    return {row.name: made[metric.name] for row, metric in metrics}


# --- The guest's system, from SystemInfo and the container list -----------------------------------------------------------------------
GUEST_INFO = _info(
    "dstack_guest_info",
    "1, with the guest's operating system and processor as labels.",
    "os_name",
    "os_version",
    "kernel_version",
    "cpu_model",
)
GUEST_CPUS = _gauge("dstack_guest_cpus", "Logical processors online.")
GUEST_MEMORY_TOTAL = _gauge("dstack_guest_memory_total_bytes", "Memory of the guest.")
GUEST_MEMORY_AVAILABLE = _gauge("dstack_guest_memory_available_bytes", "Memory that new work can use without swapping.")
GUEST_MEMORY_USED = _gauge("dstack_guest_memory_used_bytes", "Memory in use.")
GUEST_MEMORY_FREE = _gauge("dstack_guest_memory_free_bytes", "Memory not used for anything.")
GUEST_SWAP_TOTAL = _gauge("dstack_guest_swap_total_bytes", "Swap of the guest.")
GUEST_SWAP_USED = _gauge("dstack_guest_swap_used_bytes", "Swap in use.")
GUEST_SWAP_FREE = _gauge("dstack_guest_swap_free_bytes", "Swap not in use.")
GUEST_UPTIME = _gauge("dstack_guest_uptime_seconds", "Time since the guest booted.")
GUEST_LOAD1 = _gauge("dstack_guest_load1", "Load average over 1 minute.")
GUEST_LOAD5 = _gauge("dstack_guest_load5", "Load average over 5 minutes.")
GUEST_LOAD15 = _gauge("dstack_guest_load15", "Load average over 15 minutes.")
_DISK = ("name", "mount_point")
GUEST_DISK_TOTAL = _gauge("dstack_guest_disk_total_bytes", "Size of a data disk's file system.", *_DISK)
GUEST_DISK_FREE = _gauge("dstack_guest_disk_free_bytes", "What unprivileged users can still write on a data disk.", *_DISK)
GUEST_DISK_USED = _gauge(
    "dstack_guest_disk_used_bytes", "Size of a data disk's file system less what unprivileged users can still write.", *_DISK
)
GUEST_DISK_USED_RATIO = _gauge("dstack_guest_disk_used_ratio", "Used share of a data disk, 0 to 1.", *_DISK)
GUEST_CPU_SECONDS = _counter(
    "dstack_guest_cpu_seconds_total",
    "Time of all processors together since the guest booted, by mode; idle and iowait are unused.",
    "mode",
)
GUEST_NETWORK_RECEIVED = _counter(
    "dstack_guest_network_receive_bytes_total", "Received over a network interface since it came up.", "interface"
)
GUEST_NETWORK_SENT = _counter(
    "dstack_guest_network_transmit_bytes_total", "Sent over a network interface since it came up.", "interface"
)
GUEST_NETWORK_RECEIVE_ERRORS = _counter(
    "dstack_guest_network_receive_errors_total", "Packets that came broken, or could not be taken.", "interface"
)
GUEST_NETWORK_SEND_ERRORS = _counter("dstack_guest_network_transmit_errors_total", "Packets that could not be sent.", "interface")
GUEST_CONTAINER_INFO = _info(
    "dstack_guest_container_info",
    "1 for each container, running or not; ids are cut to 12 characters.",
    "id",
    "name",
    "image",
    "state",
)
GUEST_FAMILIES = (
    GUEST_INFO,
    GUEST_CPUS,
    GUEST_MEMORY_TOTAL,
    GUEST_MEMORY_AVAILABLE,
    GUEST_MEMORY_USED,
    GUEST_MEMORY_FREE,
    GUEST_SWAP_TOTAL,
    GUEST_SWAP_USED,
    GUEST_SWAP_FREE,
    GUEST_UPTIME,
    GUEST_LOAD1,
    GUEST_LOAD5,
    GUEST_LOAD15,
    GUEST_DISK_TOTAL,
    GUEST_DISK_FREE,
    GUEST_DISK_USED,
    GUEST_DISK_USED_RATIO,
    GUEST_CPU_SECONDS,
    GUEST_NETWORK_RECEIVED,
    GUEST_NETWORK_SENT,
    GUEST_NETWORK_RECEIVE_ERRORS,
    GUEST_NETWORK_SEND_ERRORS,
    GUEST_CONTAINER_INFO,
)

# --- GPUs, from GpuInfoResponse ---------------------------------------------------------------------------------------------------------
# The index moves when cards are enumerated anew; uuid and pci_bus_id follow the card.
CARD_LABELS = IDENTITY
GPU_NVML_UP = _gauge(
    "dstack_gpu_nvml_up", "1 when the last GPU sample had no error, 0 when it had; also 1 for a guest without a GPU."
)
GPU_SAMPLE_AGE = _gauge("dstack_gpu_sample_age_seconds", "Age of the GPU values when this page was made.")
GPU_CC_ENABLED = _gauge("dstack_gpu_cc_enabled", "1 when confidential computing is on, 0 when it is off; absent when unknown.")
GPU_CC_READY = _gauge("dstack_gpu_cc_ready", "1 when the GPUs accept work, 0 while they do not; absent when unknown.")
GPU_CC_DEVTOOLS = _gauge(
    "dstack_gpu_cc_devtools",
    "1 when DevTools mode is on, so that a debugger can read what confidential computing protects, 0 when it is off; absent when unknown.",
)
# Field of GpuDevice -> its family: made from the rows, in their order; rows that name the same family share it.
CARD_FAMILIES: Mapping[str, Family] = card_families((*ROWS, *OF_GUEST), CARD_LABELS)
GPU_QUERY_ERRORS = _gauge(
    "dstack_gpu_query_errors",
    "Questions about the card that failed in the last sample. One question can give several values; for a lost card all of them fail.",
    *CARD_LABELS,
)
GPU_HEALTH = _gauge(
    "dstack_gpu_health",
    "Health of the card: 0 ok, 1 degraded, 2 failed; absent when unknown.",
    *CARD_LABELS,
    group=HEALTH,
)
GPU_HEALTH_REASON = _gauge(
    "dstack_gpu_health_reason",
    "1 for each reason why the card is degraded, failed or unknown, by its code in docs/cards.md; absent for other reasons.",
    *CARD_LABELS,
    "reason",
    group=HEALTH,
)
GPU_XID_ERRORS = _counter(
    "dstack_gpu_xid_errors_total",
    "How often the driver reported this XID at the card's address since the guest booted, or since the card came back to the bus. "
    "index and uuid are empty when the driver lists no card at the address.",
    *CARD_LABELS,
    "xid",
    group=HEALTH,
)
GPU_XID_LAST = _gauge(
    "dstack_gpu_xid_last_timestamp_seconds",
    "When the driver last reported this XID at the card's address, in whole seconds since 1970-01-01 UTC; absent when unknown.",
    *CARD_LABELS,
    "xid",
    group=HEALTH,
)
_INSTANCE_LABELS = (*CARD_LABELS, "gpu_instance", "compute_instance", "profile")
GPU_MIG_MEMORY_TOTAL = _gauge("dstack_gpu_mig_memory_total_bytes", "Memory of a MIG instance.", *_INSTANCE_LABELS, group=MIG)
GPU_MIG_MEMORY_USED = _gauge("dstack_gpu_mig_memory_used_bytes", "Memory in use of a MIG instance.", *_INSTANCE_LABELS, group=MIG)
GPU_NVML_DEVICES = _gauge("dstack_gpu_nvml_devices", "Cards that the driver lists; absent when the driver could not be asked.")
GPU_PCI_DEVICES = _gauge("dstack_gpu_pci_devices", "NVIDIA cards on the guest's PCI bus; absent when the bus could not be read.")
GPU_REPEATED_DEVICES = _gauge(
    "dstack_gpu_repeated_devices",
    "Cards of the last sample that have the UUID or PCI address of an earlier one; they have no other series. Absent when there are none.",
)
GPU_FAMILIES = (
    GPU_NVML_UP,
    GPU_SAMPLE_AGE,
    GPU_CC_ENABLED,
    GPU_CC_READY,
    GPU_CC_DEVTOOLS,
    *dict.fromkeys(CARD_FAMILIES.values()),
    GPU_QUERY_ERRORS,
    GPU_HEALTH,
    GPU_HEALTH_REASON,
    GPU_XID_ERRORS,
    GPU_XID_LAST,
    GPU_MIG_MEMORY_TOTAL,
    GPU_MIG_MEMORY_USED,
    GPU_NVML_DEVICES,
    GPU_PCI_DEVICES,
    GPU_REPEATED_DEVICES,
)

# --- The guest agent itself -------------------------------------------------------------------------------------------------------------
GPU_SAMPLES = _counter("dstack_gpu_samples_total", "GPU samples taken since the agent started.", "outcome")
GPU_SAMPLE_DURATION = _gauge("dstack_gpu_sample_duration_seconds", "How long the last GPU sample took.")
GPU_CC_QUERY_ERRORS = _counter(
    "dstack_gpu_cc_query_errors_total",
    "Failed questions about confidential computing since the agent started; an answer of not supported is no failure.",
)
AGENT_BUILD_INFO = _info(
    "guest_service_build_info", "1, with the versions of the guest agent and its Python as labels.", "version", "python_version"
)
AGENT_PART_UP = _gauge(
    "guest_service_part_up", "1 when this part of the page could be read, 0 when not; then its series are absent.", "part"
)
AGENT_REJECTED = _counter(
    "guest_service_rejected_total",
    "Calls and connections that the agent's gRPC server refused because of a bound, by reason.",
    "reason",
)
AGENT_FAMILIES = (GPU_SAMPLES, GPU_SAMPLE_DURATION, GPU_CC_QUERY_ERRORS, AGENT_BUILD_INFO, AGENT_PART_UP, AGENT_REJECTED)

# --- The proxy itself -------------------------------------------------------------------------------------------------------------------
PROXY_GUEST_UP = _gauge(
    "vmm_proxy_guest_up", "1 when the guest is reachable, 0 when not, as in ListGuests; absent when it is stopped."
)
PROXY_GUEST_ANSWER_AGE = _gauge("vmm_proxy_guest_answer_age_seconds", "Time since the guest's last answer.")
PROXY_GUEST_GPUS_GIVEN = _gauge(
    "vmm_proxy_guest_gpus_given",
    "Cards that the host gave to the guest, as its entry in the directory says; absent when the entry names none.",
)
PROXY_GUEST_GPU_INFO = _info(
    "vmm_proxy_guest_gpu_info",
    "1 for each card whose PCI address on the host is known; joins it to the address in the guest.",
    *CARD_LABELS,
    "host_pci_bus_id",
)
PROXY_CALLS = _counter(
    "vmm_proxy_calls_total",
    "Calls about one guest, and refused calls of every method, by method and gRPC status.",
    "method",
    "code",
)
PROXY_CALL_DURATION = Family(
    "vmm_proxy_call_duration_seconds", Kind.HISTOGRAM, "Time from a call's arrival to its answer.", ("method",)
)
PROXY_CALLS_IN_FLIGHT = _gauge("vmm_proxy_calls_in_flight", "Calls that have come and are not answered yet.")
PROXY_REJECTED = _counter(
    "vmm_proxy_rejected_total", "Calls that the proxy refused before it called a guest, by reason.", "reason"
)
PROXY_REDIALS = _counter(
    "vmm_proxy_redials_total", "Channels that were closed and opened again because the guest did not answer."
)
PROXY_IDENTITY_MISMATCHES = _counter(
    "vmm_proxy_identity_mismatches_total", "Connections at which another VM than the pinned one answered."
)
PROXY_DIRECTORY_ENTRIES = _gauge("vmm_proxy_directory_entries", "Guests in the directory, by state.", "state")
PROXY_DIRECTORY_REFUSED = _gauge(
    "vmm_proxy_directory_refused",
    "Entries of this source, files, libvirt domains or KubeVirt instances, that the proxy refuses; its log says why.",
    "source",
)
PROXY_DIRECTORY_SOURCE_UP = _gauge(
    "vmm_proxy_directory_source_up",
    "1 when this source of guests can be read, 0 when not; then the guests last known from it stay.",
    "source",
)
PROXY_BUILD_INFO = _info(
    "vmm_proxy_build_info", "1, with the versions of the proxy and its Python as labels.", "version", "python_version"
)
PROXY_FAMILIES = (
    PROXY_GUEST_UP,
    PROXY_GUEST_ANSWER_AGE,
    PROXY_GUEST_GPUS_GIVEN,
    PROXY_GUEST_GPU_INFO,
    PROXY_CALLS,
    PROXY_CALL_DURATION,
    PROXY_CALLS_IN_FLIGHT,
    PROXY_REJECTED,
    PROXY_REDIALS,
    PROXY_IDENTITY_MISMATCHES,
    PROXY_DIRECTORY_ENTRIES,
    PROXY_DIRECTORY_REFUSED,
    PROXY_DIRECTORY_SOURCE_UP,
    PROXY_BUILD_INFO,
)

# --- Either process: the names that every Prometheus client library uses ----------------------------------------------------------------
PROCESS_CPU = _counter("process_cpu_seconds_total", "Processor time used by this process, user and system.")
PROCESS_RESIDENT = _gauge("process_resident_memory_bytes", "Resident memory of this process.")
PROCESS_VIRTUAL = _gauge("process_virtual_memory_bytes", "Virtual memory of this process.")
PROCESS_START = _gauge("process_start_time_seconds", "When this process started, since 1970-01-01 UTC.")
PROCESS_OPEN_FDS = _gauge("process_open_fds", "Open file descriptors of this process.")
PROCESS_MAX_FDS = _gauge("process_max_fds", "File descriptors that this process may have open at most.")
PROCESS_THREADS = _gauge("process_threads", "Threads of this process.")
PROCESS_FAMILIES = (
    PROCESS_CPU,
    PROCESS_RESIDENT,
    PROCESS_VIRTUAL,
    PROCESS_START,
    PROCESS_OPEN_FDS,
    PROCESS_MAX_FDS,
    PROCESS_THREADS,
)

ALL: tuple[Family, ...] = GUEST_FAMILIES + GPU_FAMILIES + AGENT_FAMILIES + PROXY_FAMILIES + PROCESS_FAMILIES


def of_groups(groups: Collection[str]) -> tuple[Family, ...]:
    """The families of these groups, in order."""
    return tuple(family for family in ALL if family.group in groups)
