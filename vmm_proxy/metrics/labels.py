"""Names of Prometheus labels made from the directory's labels.

A directory's key (`rack`, `k8s.io/node`) may hold characters that a label name may not. Two keys that become one name are refused when
the configuration is read, and so is a key that would become `vm_id`: a label that sometimes means another thing is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.directory.labels import label_name

VM_ID = "vm_id"


def chosen_labels(keys: Iterable[str]) -> dict[str, str]:
    """The label name for each of `keys`; raises ValueError for two that would be one."""
    names = {VM_ID: "the guest's id"}
    chosen: dict[str, str] = {}
    for key in keys:
        name = f"vm_{label_name(key)}"
        if name in names:
            raise ValueError(f"{key!a} would become {name}, which is {names[name]} already")
        names[name] = repr(key)
        chosen[key] = name
    return chosen


def own_labels(entry: GuestEntry, chosen: Mapping[str, str]) -> dict[str, str]:
    """The proxy's labels of a guest's lines: its id, and those of the chosen labels that it has."""
    labels = {VM_ID: entry.id}
    labels.update((name, entry.labels[key]) for key, name in chosen.items() if key in entry.labels)
    return labels
