"""Pages and streams are read to their end, and everything that is no whole answer is an error."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from soak.pages import PageError, events, get, values


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sk") as folder:
        yield Path(folder) / "http"


@asynccontextmanager
async def answering(socket: Path, *pieces: bytes, stay: bool = False) -> AsyncIterator[list[bytes]]:
    asked: list[bytes] = []
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if stay:
            await ended.wait()
        writer.close()

    async with await asyncio.start_unix_server(answer, socket):
        try:
            yield asked
        finally:
            ended.set()


async def test_a_page_is_its_body_in_however_many_pieces_it_comes(socket: Path) -> None:
    async with answering(socket, b"HTTP/1.1 200 OK\r\ncontent-", b"length: 4\r\n\r\n", b"ab", b"cd") as asked:
        assert await get(socket, "/metrics", 5) == "abcd"
        assert asked[0].startswith(b"GET /metrics HTTP/1.0\r\n")


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ((b"HTTP/1.1 503 Busy\r\n\r\n",), "answered HTTP/1.1 503 Busy"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",), "3 of 9 bytes"),
        ((b"HTTP/1.1 200 OK\r\n",), "no answer"),
    ],
)
async def test_what_is_no_whole_page_is_an_error(socket: Path, pieces: tuple[bytes, ...], words: str) -> None:
    async with answering(socket, *pieces):
        with pytest.raises(PageError, match=words):
            await get(socket, "/", 5)


async def test_nobody_there_and_silence_are_errors(socket: Path) -> None:
    with pytest.raises(PageError, match="no answer"):
        await get(socket, "/", 5)
    async with answering(socket, stay=True):
        with pytest.raises(PageError, match=r"within 0\.2 s"):
            await get(socket, "/", 0.2)
        with pytest.raises(PageError, match=r"silent for 0\.2 s"):
            await anext(events(socket, "/events", 0.2))


async def test_a_stream_is_the_names_of_its_events_until_it_ends(socket: Path) -> None:
    async with answering(socket, b"HTTP/1.1 200 OK\r\n\r\n", b"event: guests\ndata: []\n\n", b"event: pulse\ndata: null\n\n"):
        stream = events(socket, "/events", 5)
        assert [await anext(stream), await anext(stream)] == ["guests", "pulse"]
        with pytest.raises(PageError, match="the stream ended"):
            await anext(stream)


def test_values_are_those_of_one_metric_by_guest() -> None:
    page = (
        'age_seconds{vm_id="a",vm_rack="r"} 1.5\nage_seconds{vm_id="b"} 2\nmean_age_seconds{vm_id="a"} 9\n'
        '# age_seconds{vm_id="c"} 3\nage_seconds_total{vm_id="a"} 8\n'
    )
    assert values(page, "age_seconds") == {"a": 1.5, "b": 2.0}
