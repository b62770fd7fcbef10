"""The reads behind the pages: one at a time, bounded for each reader, never older than promised."""

from __future__ import annotations

import asyncio
import logging

import pytest

from guest_api.guest_api_pb2 import Container, ListContainersResponse
from guest_service.http.container_board import FOLLOW_SECONDS, KEEP_SECONDS, REFRESH_SECONDS, ContainerBoard, Listing
from guest_transport.http.shared_look import SharedLook
from tests.eventually import eventually, turns


class Thing:
    """Something to look at, whose reads end when the test says so."""

    def __init__(self) -> None:
        self.started = 0
        self.answers: asyncio.Queue[int | Exception] = asyncio.Queue()

    async def read(self) -> int:
        self.started += 1
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_many_readers_share_one_read_and_its_value() -> None:
    thing = Thing()
    look = SharedLook("thing", thing.read)
    readers = asyncio.gather(*(look.within(10) for _ in range(50)))
    await turns()
    thing.answers.put_nowait(7)
    assert await readers == [7] * 50
    assert thing.started == 1


async def test_a_reader_that_gives_up_leaves_the_read_to_the_others() -> None:
    thing = Thing()
    look = SharedLook("thing", thing.read)
    patient = asyncio.ensure_future(look.within(10))
    assert await look.within(0) is None
    cancelled = asyncio.ensure_future(look.within(10))
    await turns()
    cancelled.cancel()
    thing.answers.put_nowait(7)
    assert await patient == 7
    assert thing.started == 1


async def test_the_next_reader_after_an_end_looks_anew() -> None:
    thing = Thing()
    look = SharedLook("thing", thing.read)
    for value in (1, 2):
        thing.answers.put_nowait(value)
        assert await look.within(10) == value


async def test_a_failure_is_unknown_and_is_logged_when_it_begins_changes_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    thing = Thing()
    look = SharedLook("thing", thing.read)
    for answer in (OSError("a"), OSError("a"), OSError("b"), 1, 2):
        thing.answers.put_nowait(answer)
        assert await look.within(10) == (answer if isinstance(answer, int) else None)
    said = [record.getMessage() for record in caplog.records]
    assert [text.rpartition(" ")[2] for text in said] == ["a", "b", "again"]
    assert all(text.startswith("thing can") for text in said)


async def test_closing_ends_a_read_that_hangs() -> None:
    thing = Thing()
    look = SharedLook("thing", thing.read)
    waiting = asyncio.ensure_future(look.within(1000))
    await turns()
    await look.close()
    assert await waiting is None


class Board:
    """A board with a clock that moves when its pauses are over."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.lists = 0
        self.fails = False
        self.pauses: asyncio.Queue[float] = asyncio.Queue()
        self.resume = asyncio.Event()
        self.board = ContainerBoard(SharedLook("list", self._list), clock=lambda: self.now, pause=self._pause)

    async def _list(self) -> ListContainersResponse:
        self.lists += 1
        if self.fails:
            raise OSError("engine")
        return ListContainersResponse(containers=[Container(id=str(self.lists))])

    async def _pause(self, seconds: float) -> None:
        self.pauses.put_nowait(seconds)
        await self.resume.wait()
        self.resume.clear()

    def follows(self) -> bool:
        """Whether the board reads again by itself."""
        return "container list" in {task.get_name() for task in asyncio.all_tasks()}

    async def read_done(self) -> None:
        """Return once a read is over and the board pauses."""
        assert await self.pauses.get() == REFRESH_SECONDS

    async def pass_pause(self) -> None:
        self.now += REFRESH_SECONDS
        self.resume.set()
        await self.read_done()


def ids(listing: Listing) -> list[str]:
    assert listing.containers is not None
    return [container.id for container in listing.containers]


async def test_a_scrape_does_not_wait_and_the_next_one_finds_a_list_younger_than_15_s() -> None:
    board = Board()
    assert board.board.last() == Listing(None)
    await board.read_done()
    for scrape in range(1, 10):
        assert ids(board.board.last()) == [str(board.lists)]
        for _ in range(3):
            await board.pass_pause()
        assert board.lists == 1 + 3 * scrape
    await board.board.close()


async def test_a_list_older_than_15_s_is_not_shown() -> None:
    board = Board()
    board.board.last()
    await board.read_done()
    board.now += KEEP_SECONDS
    assert ids(board.board.last()) == ["1"]
    board.now += 0.1
    assert board.board.last() == Listing(None)
    await board.board.close()


async def test_reads_end_when_nobody_asks_any_more_and_begin_again_with_the_next_page() -> None:
    board = Board()
    board.board.last()
    await board.read_done()
    rounds = int(FOLLOW_SECONDS / REFRESH_SECONDS)
    for _ in range(rounds):
        await board.pass_pause()
    assert board.lists == rounds + 1
    assert board.follows()
    board.now += REFRESH_SECONDS
    board.resume.set()
    await eventually(lambda: not board.follows())
    assert board.lists == rounds + 1
    board.now += KEEP_SECONDS
    assert board.board.last() == Listing(None)
    assert ids(await board.board.soon(10)) == [str(rounds + 2)]
    await board.board.close()


async def test_a_failing_engine_is_said_and_is_no_empty_list() -> None:
    board = Board()
    board.fails = True
    assert await board.board.soon(10) == Listing(None, failed=True)
    board.fails = False
    await board.read_done()
    await board.pass_pause()
    assert ids(board.board.last()) == ["2"]
    await board.board.close()


async def test_a_person_waits_for_the_first_list_a_moment_at_most() -> None:
    board = ContainerBoard(SharedLook("list", lambda: asyncio.get_running_loop().create_future()), clock=lambda: 0.0)
    assert await board.soon(0.01) == Listing(None)
    await board.close()
