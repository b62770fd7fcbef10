"""The pages of `vmm-proxy serve` as an operator meets them."""

from __future__ import annotations

import asyncio
import re
import socket
import urllib.request

from guest_transport.addresses import TcpAddress
from tests.fleet_http.fleet import short_folder
from tests.http.web import close, connect, read_head, request
from tests.proxy import processes


async def pages_address(proxy: processes.ProxyProcess) -> TcpAddress:
    assert proxy.process.stderr is not None
    async with asyncio.timeout(20):
        while not (found := re.search(r"listening for HTTP on 127\.0\.0\.1:(\d+)", "".join(proxy.lines))):
            proxy.lines.append((await proxy.process.stderr.readline()).decode())
    return TcpAddress("127.0.0.1", int(found[1]))


async def test_pages_are_served_and_a_stop_ends_them_and_their_streams_in_time() -> None:
    with short_folder() as folder:
        async with processes.serving(
            "--grpc", f"unix:{folder}/proxy", "--http", "127.0.0.1:0", "--guest", f"vm-a=unix:{folder}/nobody"
        ) as proxy:
            address = await pages_address(proxy)

            def metrics() -> str:
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                    return str(answer.read().decode())

            assert 'vmm_proxy_guest_up{vm_id="vm-a"} 0' in await asyncio.to_thread(metrics)
            reader, writer = await connect(address)
            writer.write(request("/events"))
            assert (await read_head(reader))[0] == 200
            started = asyncio.get_running_loop().time()
            status, out, err = await proxy.stop()
            assert (status, out) == (0, "")
            assert asyncio.get_running_loop().time() - started < 5
            assert "Traceback" not in err
            await close(writer)


async def test_a_taken_address_of_the_pages_is_one_line_and_nothing_stays_behind() -> None:
    with short_folder() as folder, socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        status, out, err = await processes.run("serve", "--grpc", f"unix:{folder}/proxy", "--http", where)
        assert (status, out) == (1, "")
        assert err.splitlines()[-1].startswith(f"{where}: cannot listen for HTTP: address already in use")
        assert not (folder / "proxy").exists()


async def test_off_serves_no_page() -> None:
    with short_folder() as folder:
        async with processes.serving("--grpc", f"unix:{folder}/proxy", "--http", "off") as proxy:
            status, _, err = await proxy.stop()
            assert status == 0
            assert "HTTP" not in err
