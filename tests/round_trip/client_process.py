"""The SDK in a process of its own: asks a guest everything through a proxy, and tells what it got.

    python client_process.py PROXY VM_ID      (PYTHONPATH decides which version of the contract it is built with)

One JSON object: for each method the bytes of the message that the caller of the SDK holds, and the names of the fields it can see.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from guest_api import guest_api_pb2
from guest_client.sync_client import ProxyClient
from tests.round_trip.messages import seen


def main(address: str, vm_id: str) -> None:
    with ProxyClient(address) as proxy:
        (collected,) = proxy.collect_gpu_info(ids=[vm_id])
        watch = proxy.watch_gpu_info(ids=[vm_id])
        watched = next(watch)
        watch.close()
        replies = {
            "collected": collected.gpu_info,
            "watched": watched.gpu_info,
            "Info": proxy.info(vm_id),
            "SysInfo": proxy.sys_info(vm_id),
            "GpuInfo": proxy.gpu_info(vm_id),
            "NetworkInfo": proxy.network_info(vm_id),
            "ListContainers": proxy.list_containers(vm_id),
        }
    told = {
        method: {"bytes": reply.SerializeToString(deterministic=True).hex(), "seen": sorted(seen(reply))}
        for method, reply in replies.items()
    }
    print(json.dumps({"contract": str(Path(guest_api_pb2.__file__).parent), "replies": told}))


if __name__ == "__main__":
    main(*sys.argv[1:])
