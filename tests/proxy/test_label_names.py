"""Keys that Prometheus could not tell apart are refused where they enter: none of a guest's labels is lost in silence."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import grpc
import pytest

from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from guest_transport.errors import SettingsError
from tests.proxy.running import running_proxy
from vmm_proxy.config import read_setup
from vmm_proxy.directory.directory import Directory
from vmm_proxy.directory.folder import GuestFolder
from vmm_proxy.directory.registered import RegisteredGuests

ALIKE = {"ops-managed": "1", "ops.managed": "2", "ops_managed": "3", "rack": "7"}
TOML = "labels = {" + ", ".join(f"'{key}' = '{value}'" for key, value in ALIKE.items()) + "}\n"
TOLD = "labels: 'ops-managed', 'ops.managed', 'ops_managed' would be one Prometheus label, ops_managed: keep one of them"


def test_the_configuration_refuses_them_with_all_of_them_named(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[[guest]]\nid = 'vm1'\naddress = 'unix:/g'\n{TOML}")
    with pytest.raises(SettingsError) as caught:
        read_setup(file)
    assert str(caught.value) == f"{file}: guest[0].{TOLD}"


def test_a_file_of_the_folder_is_refused_alone(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(f"id = 'vm1'\naddress = 'unix:/a'\n{TOML}")
    (tmp_path / "b.toml").write_text("id = 'vm2'\naddress = 'unix:/b'\nlabels = {'ops-managed' = '1', ops_owned = '2'}\n")
    directory = Directory()
    folder = GuestFolder(tmp_path, directory, allow_plaintext=False)
    folder.scan()
    assert folder.refused == {"a.toml": f"{tmp_path}/a.toml: {TOLD}"}
    assert [entry.id for entry in directory.after()] == ["vm2"]


async def test_the_registered_file_and_a_vmm_that_registers_are_refused_too(tmp_path: Path, sockets: Path) -> None:
    file = tmp_path / "registered.json"
    file.write_text(json.dumps({"guests": [{"id": "vm1", "address": "unix:/a", "labels": ALIKE}]}))
    registered = RegisteredGuests(file, Directory(), allow_plaintext=False)
    with pytest.raises(SettingsError) as caught:
        await asyncio.to_thread(registered.load)
    assert str(caught.value) == f"{file}: guests[0].{TOLD}"
    async with running_proxy(sockets / "proxy", registered=registered) as proxy:
        entry = fleet_pb2.GuestEntry(id="vm1", address="unix:/a", labels=ALIKE)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await fleet_pb2_grpc.DirectoryServiceStub(proxy.channel).RegisterGuest(
                fleet_pb2.RegisterGuestRequest(guest=entry), timeout=5
            )
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, f"guest.{TOLD}")
