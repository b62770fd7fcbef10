"""Real AF_VSOCK inside one virtual machine: guest agent, proxy and guestctl, as they are installed here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.vm.machine import END_LIMIT_SECONDS, require_parts, virtual_machine

pytestmark = [pytest.mark.vm, pytest.mark.timeout(END_LIMIT_SECONDS + 30)]


async def test_guestctl_sees_a_gpu_through_proxy_and_agent_over_vsock_and_a_cid_that_is_not_allowed_sees_none(
    tmp_path: Path,
) -> None:
    modules = ["vsock_loopback"]
    async with virtual_machine(require_parts(), tmp_path, "tests.vm.inside.loopback", modules=modules) as machine:
        results = await machine.results()

    assert results["vm"]["status"] == 0, results
    (gpu,) = json.loads(results["vm"]["stdout"])["gpus"]
    assert gpu["uuid"].startswith("GPU-")
    # The closed guest lets in the host alone, and this caller is the machine itself.
    assert results["closed"]["status"] != 0
    assert "guest closed" in results["closed"]["stderr"]
    assert "CID 1" in machine.log("closed")
    assert results["peer"] == {"cid": 1, "closed_port": "ECONNRESET"}
    assert results["foreign_cid"].startswith("vsock:77:8000: cannot listen: the CID is not this machine's")
    assert results["taken"] == "vsock:any:8000: cannot listen: port 8000 is taken"
