"""The HTTP side of a server: does its page answer, and is it ours?

`/readyz` is asked, whose words are the product's own: another program that happens to have the port does not say them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from guest_transport.addresses import Address, TcpAddress, UnixAddress
from guest_transport.doctor.checks import in_thread
from guest_transport.doctor.files import read_facts
from guest_transport.doctor.findings import Finding, note, ok, wrong
from guest_transport.doctor.listeners import (
    ANSWER_SECONDS,
    connected,
    folder_of,
    holders_of,
    judge_refusal,
    judge_socket,
    judge_stranger,
    knock,
)

# /readyz is one short line; more is somebody else's page.
_ANSWER_LIMIT_BYTES = 4096
_READY, _NOT_READY = "ready\n", "not ready: "


async def examine_pages(address: Address | None, unit: str) -> list[Finding]:
    """Whether the pages at `address` answer; None: they are off."""
    if address is None:
        return [note("off: no pages and no /metrics", "http.listen turns them on")]
    if not isinstance(address, UnixAddress | TcpAddress):
        return [wrong(f"{address}: pages are served on HOST:PORT or unix:/path only", "change http.listen")]
    if isinstance(address, TcpAddress) and address.port == 0:
        return [note(f"{address}: the port is chosen at the start, so it is not looked at")]
    found: list[Finding] = []
    if isinstance(address, UnixAddress):
        facts, folder = await in_thread(lambda: (read_facts(Path(address.path)), folder_of(address)))
        found += judge_socket(address, facts, folder)
    refusal = await knock(address)
    if refusal is not None:
        return [*found, judge_refusal(address, refusal, f"systemctl start {unit}; journalctl -u {unit} says why it ended")]
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await _get(address, "/readyz")
    except TimeoutError:
        return [*found, judge_stranger(str(address), await holders_of(address), f"nothing within {ANSWER_SECONDS:g} s", "page")]
    except OSError as error:
        return [*found, judge_stranger(str(address), await holders_of(address), error.strerror or str(error), "page")]
    return [*found, judge_page(str(address), answer, await holders_of(address))]


def judge_page(where: str, answer: bytes, holders: str) -> Finding:
    """What `answer`, a whole HTTP/1.1 answer of /readyz, says."""
    head, _, body = answer.decode("utf-8", "replace").partition("\r\n\r\n")
    status = head.split("\r\n", 1)[0].split(" ")
    if status[:1] == ["HTTP/1.1"] and status[1:2] == ["200"] and body == _READY:
        return ok(f"http://{where}/ answers, ready")
    if status[1:2] == ["503"] and body.startswith(_NOT_READY):
        return note(f"http://{where}/ answers, {body.strip()}")
    return judge_stranger(where, holders, f"{' '.join(status)[:80] or 'nothing'}", "page")


async def _get(address: UnixAddress | TcpAddress, path: str) -> bytes:
    loop = asyncio.get_running_loop()
    with await connected(address) as connection:
        await loop.sock_sendall(connection, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while len(answer) < _ANSWER_LIMIT_BYTES and (part := await loop.sock_recv(connection, _ANSWER_LIMIT_BYTES)):
            answer += part
        return answer
