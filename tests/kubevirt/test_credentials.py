"""Who the proxy says it is to an API server, whom it believes, and what it is allowed."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
import yaml

from tests.eventually import eventually
from tests.kubevirt.api_server import ApiServer
from tests.kubevirt.followed import Followed, watched
from tests.kubevirt.objects import NODE, instance
from vmm_proxy.directory.directory import Directory
from vmm_proxy.directory.kubevirt.guests import KubevirtSource
from vmm_proxy.directory.kubevirt.settings import KubevirtSetup


async def test_a_token_that_the_kubelet_renewed_is_used_for_the_next_watch(api: ApiServer, tmp_path: Path) -> None:
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("token-1\n")
    followed = Followed(api, kubeconfig=api.kubeconfig(tokenFile=str(account / "token")))
    followed.source.start()
    try:
        await watched(api)
        (account / "token").write_text("token-2\n")
        api.tokens = {"token-2"}
        api.end_watches()
        assert (await followed.stops())[0] == []
        followed.go_on()
        await watched(api)
        assert [request.token for request in api.requests] == ["token-1", "token-1", "token-2"]
        assert followed.source.problems == []
    finally:
        await followed.source.close()


async def test_in_a_pod_its_service_account_is_used(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("token-1\n")
    (account / "namespace").write_text("guestscope")
    (account / "ca.crt").write_bytes(api.ca.read_bytes())
    setup = KubevirtSetup(NODE, (), (), 8000, None)
    pauses: asyncio.Queue[float] = asyncio.Queue()

    async def sleep(seconds: float) -> None:
        pauses.put_nowait(seconds)
        await asyncio.Event().wait()

    outside = KubevirtSource(setup, Directory(), service_account=account, sleep=sleep)
    outside.start()
    await asyncio.wait_for(pauses.get(), 30)
    assert outside.problems == ["this is no pod with a service account: set kubevirt.kubeconfig"]
    await outside.close()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
    api.put(instance(cid=41))
    directory = Directory()
    source = KubevirtSource(setup, directory, service_account=account, sleep=sleep)
    source.start()
    try:
        await eventually(lambda: len(directory) == 1)
    finally:
        await source.close()


async def test_two_namespaces_need_rights_for_these_only_and_one_that_fails_leaves_the_other(api: ApiServer) -> None:
    api.allowed = {"list": {"blue", "red"}, "watch": {"blue", "red"}}
    api.put(instance("one", "blue", cid=41))
    api.put(instance("two", "red", cid=42))
    api.put(instance("three", "green", cid=43))
    followed = Followed(api, ("blue", "red"))
    followed.source.start()
    try:
        await followed.becomes({"blue.one": "vsock:41:8000 running", "red.two": "vsock:42:8000 running"})
        await eventually(lambda: api.watching == 2)
        api.allowed = {"list": {"blue"}, "watch": {"blue"}}
        api.end_watches()
        for _ in range(2):
            await followed.stops()
            followed.go_on()
        await followed.stops()
        assert len(followed.source.problems) == 1
        assert 'in the namespace "red"' in followed.source.problems[0]
        assert not followed.source.state.readable
        api.put(instance("four", "blue", cid=44))
        await followed.becomes(
            {"blue.four": "vsock:44:8000 running", "blue.one": "vsock:41:8000 running", "red.two": "vsock:42:8000 running"}
        )
    finally:
        await followed.source.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}]}, "asked by https only"),
        ({"users": [{"name": "u", "user": {"exec": {"apiVersion": "v1", "command": "sh"}}}]}, "runs a program"),
        ({"users": [{"name": "u", "user": {"tokenFile": "/nowhere"}}]}, "No such file"),
        ({"contexts": []}, "cannot be used"),
        ({"clusters": [{"name": "c"}]}, "cannot be used"),
    ],
)
async def test_a_kubeconfig_that_cannot_be_used_says_why_and_is_read_again(
    api: ApiServer, change: dict[str, object], words: str
) -> None:
    file = api.kubeconfig()
    good = file.read_text()
    file.write_text(yaml.safe_dump({**yaml.safe_load(good), **change}))
    api.put(instance(cid=41))
    followed = Followed(api, kubeconfig=file)
    followed.source.start()
    try:
        problems, _ = await followed.stops()
        assert words in problems[0]
        file.write_text(good)
        followed.go_on()
        await followed.becomes({"tenant-blue.vm1": "vsock:41:8000 running"})
    finally:
        await followed.source.close()


async def test_a_server_whose_certificate_is_another_authoritys_is_not_asked_for_anything(api: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    api.ca.write_bytes(ApiServer(tmp_path / "other").ca.read_bytes())
    followed = Followed(api)
    followed.source.start()
    try:
        problems, _ = await followed.stops()
        assert "certificate" in problems[0].lower()
        assert api.requests == [], "no token was sent"
    finally:
        await followed.source.close()


async def test_certificates_may_be_in_the_kubeconfig_itself_and_the_server_sees_the_proxys(api: ApiServer) -> None:
    file = api.kubeconfig(**api.client_certificate("system:node-proxy"))
    config = yaml.safe_load(file.read_text())
    cluster = config["clusters"][0]["cluster"]
    cluster["certificate-authority-data"] = base64.b64encode(Path(cluster.pop("certificate-authority")).read_bytes()).decode()
    file.write_text(yaml.safe_dump(config))
    api.tokens = set()
    api.put(instance(cid=41))
    followed = Followed(api, kubeconfig=file)
    followed.source.start()
    try:
        await followed.becomes({"tenant-blue.vm1": "vsock:41:8000 running"})
    finally:
        await followed.source.close()
