"""What the API server tells of this node's instances, asked once, by the proxy's own client and rules.

A module of its own because its imports are an extra: known_guests loads it only where a cluster is followed.
"""

from __future__ import annotations

import asyncio

from vmm_proxy.directory.directory import Directory
from vmm_proxy.directory.kubevirt.api_server import ApiServerError, open_api_server
from vmm_proxy.directory.kubevirt.follower import Known, by_name
from vmm_proxy.directory.kubevirt.guests import KubevirtGuests
from vmm_proxy.directory.kubevirt.settings import KubevirtSetup


async def read_instances(setup: KubevirtSetup, directory: Directory, bound_seconds: float) -> tuple[int, KubevirtGuests] | str:
    """How many instances there are, and those of them that became guests of `directory`; in words why there is no answer."""
    guests = KubevirtGuests(directory, setup)
    namespaces = setup.namespaces or ("",)
    try:
        async with asyncio.timeout(bound_seconds):
            parts = await asyncio.gather(*(_list(setup, namespace) for namespace in namespaces))
    except ApiServerError as error:
        return str(error)
    except TimeoutError:
        return f"the API server has not answered within {bound_seconds:g} s"
    for namespace, known in zip(namespaces, parts, strict=True):
        guests.apply(namespace, known)
    return sum(map(len, parts)), guests


async def _list(setup: KubevirtSetup, namespace: str) -> Known:
    api = await asyncio.to_thread(lambda: open_api_server(setup.kubeconfig, node=setup.node, namespace=namespace))
    try:
        listing = await api.list(from_cache=True)
        # A watch needs a right of its own, and the proxy could not follow without it.
        async with api.watch(listing.version):
            return by_name(listing.items)
    finally:
        await api.close()
