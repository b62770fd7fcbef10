"""Writes docs/metrics.md from the table in guest_metrics, so that the reference cannot say anything else than the pages.

A test compares the file with a fresh rendering. Rejected: a reference by hand (it was wrong after the first new metric everywhere it was
tried).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from guest_metrics import table
from guest_metrics.table import Family

FILE = Path(__file__).parent.parent / "docs/metrics.md"

_INTRODUCTION = """\
# Metrics

<!-- Written by `make metrics-reference` from guest_metrics/table.py. Do not edit. -->

`/metrics` is Prometheus text 0.0.4, or OpenMetrics 1.0 when the scraper asks for it. What the pages hold to:

- **Absent is not zero.** A value that could not be read has no sample; a measured zero has one. `dstack_gpu_query_errors` says how many
  questions about a card had no answer: one may stand for several values, and a lost card is a single one.
- **Every GPU value has an age**: `dstack_gpu_sample_age_seconds`, from a clock that also counts while the machine is suspended. A scrape
  never waits for the GPU.
- **Base units**, but for the two names that dstack fixed otherwise: percent from 0 to 100, and milliwatts.
- Follow a card by `uuid` or `pci_bus_id`; `index` moves when cards are enumerated anew.
- On the proxy's page each series of a guest has `vm_id` in front, and the directory's chosen labels as `vm_…`. A guest can set none of
  them.
- A kind written as *info* is a gauge that is always 1, and an `info` in OpenMetrics.

## Groups

A page is chosen by group: `/metrics?group=health&group=limits`, in Prometheus `params: {group: [health, limits]}`. `base` is a group
like the others and holds all that is of no other: a page of `group=health` alone is without it. Without the parameter a guest's page has
all that the guest samples (`gpu.groups`), and the proxy's has base, identity and health. An unknown group is refused (400) with the known
ones.

"""

_GROUPS: tuple[tuple[str, str, tuple[Family, ...]], ...] = (
    ("GPUs", "On a guest's page and on the proxy's.", table.GPU_FAMILIES),
    ("The guest's system", "On a guest's page and on the proxy's.", table.GUEST_FAMILIES),
    (
        "The guest agent",
        "On a guest's page. `part` is system, process or containers; `outcome` is how a sample ended.",
        table.AGENT_FAMILIES,
    ),
    ("The proxy", "On the proxy's page; those about a guest have `vm_id`.", table.PROXY_FAMILIES),
    ("The serving process", "On both pages, under the names of every Prometheus client library.", table.PROCESS_FAMILIES),
)

_USE = """\
## Questions that these answer

| question | expression |
|---|---|
| which cards have fallen off the bus or out of the driver | `dstack_gpu_pci_devices > dstack_gpu_nvml_devices` |
| which cards are not healthy, and why | `dstack_gpu_health_reason == 1` |
| which cards have failed | `dstack_gpu_health == 2` |
| which cards reported an XID in the last hour | `time() - dstack_gpu_xid_last_timestamp_seconds < 3600` |
| which guests do not know the state of their GPUs | `dstack_gpu_nvml_up == 0` |
| which values are older than a minute | `dstack_gpu_sample_age_seconds > 60` |
| how full is each card's memory | `dstack_gpu_memory_used_bytes / dstack_gpu_memory_total_bytes` |
| power of all cards in watts | `sum(dstack_gpu_power_usage_milliwatts) / 1000` |
| where is confidential computing on and not ready | `dstack_gpu_cc_enabled == 1 and dstack_gpu_cc_ready == 0` |
| where may a debugger look into what confidential computing protects | `dstack_gpu_cc_devtools == 1` |
| which part of a guest's page is missing | `guest_service_part_up == 0` |
"""


def render() -> str:
    """The whole page."""
    return _INTRODUCTION + "".join(_group(*group) for group in _GROUPS) + _USE


def _group(title: str, note: str, families: Iterable[Family]) -> str:
    rows = "".join(
        f"| `{family.name}` | {family.kind.value} | {family.group} | {_labels(family)} | {family.help} |\n" for family in families
    )
    return f"## {title}\n\n{note}\n\n| name | kind | group | labels | what it says |\n|---|---|---|---|---|\n{rows}\n"


def _labels(family: Family) -> str:
    return ", ".join(f"`{label}`" for label in family.labels)


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
