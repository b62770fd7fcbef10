"""`/logs/{container}`: which container, which part of its output, for how long, and for how many at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_api.guest_api_pb2 import Container
from guest_service.http.log_pages import find_container
from guest_service.http.log_query import LogQuery, LogQueryError, parse_log_query
from guest_transport.http.bounded_stream import BoundedStream
from tests.eventually import eventually
from tests.http.guests import Engine, Guest, Shown, containers, served
from tests.http.web import BOUND_SECONDS, close, connect, get, read_chunk, read_head, request

NOW = 1_800_000_000.0


def guest_with_logs(**engine: Any) -> Guest:
    return Guest(engine=Engine(containers=containers(2), **engine))


async def test_the_last_1000_lines_come_as_plain_text_that_no_browser_takes_for_a_page() -> None:
    guest = guest_with_logs(output=[b"<script>alert(1)</script>\n", b"\xff\x1b[2J"])
    async with served(guest) as address:
        answer = await get(address, "/logs/service-1")
    assert answer.status == 200
    assert answer.body == b"<script>alert(1)</script>\n\xff\x1b[2J"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert guest.engine.asked == [
        {"container": f"{1:064x}", "since": None, "until": None, "tail": 1000, "follow": False, "timestamps": False}
    ]


async def test_the_query_reaches_the_engine() -> None:
    guest = guest_with_logs()
    async with served(guest) as address:
        answer = await get(address, "/logs/service-1?since=10m&until=1800000000&tail=5&timestamps=true")
    assert answer.status == 200
    assert guest.engine.asked == [
        {"container": f"{1:064x}", "since": NOW - 600, "until": NOW, "tail": 5, "follow": False, "timestamps": True}
    ]


async def test_a_followed_log_goes_on_as_it_grows_and_ends_with_its_reader() -> None:
    guest = guest_with_logs(output=[b"old\n"])
    async with served(guest) as address, asyncio.timeout(BOUND_SECONDS):
        reader, writer = await connect(address)
        writer.write(request("/logs/service-1?follow"))
        assert (await read_head(reader))[0] == 200
        assert await read_chunk(reader) == b"old\n"
        guest.engine.more.put_nowait(b"new\n")
        assert await read_chunk(reader) == b"new\n"
        await close(writer)
        await eventually(lambda: not guest.engine.open_streams)
    assert guest.engine.open_streams == 0


@pytest.mark.parametrize(
    "name", ["nobody", "..%2F..%2Fetc", "service-1%2Fjson", f"{1:011x}", "service-1%00", "%3Fall=1", "service"]
)
async def test_a_name_that_is_no_container_is_404_and_the_engine_is_asked_for_no_log(name: str) -> None:
    guest = guest_with_logs()
    async with served(guest) as address:
        assert (await get(address, f"/logs/{name}")).status == 404
    assert guest.engine.asked == []


async def test_with_public_logs_off_nothing_is_there_and_the_engine_is_not_asked() -> None:
    guest = guest_with_logs()
    guest.shown = Shown(public_logs=False)
    async with served(guest) as address:
        answer = await get(address, "/logs/service-1")
    assert answer.status == 404
    assert (guest.engine.lists, guest.engine.asked) == (0, [])


async def test_an_engine_that_fails_is_503_without_its_words() -> None:
    async with served(guest_with_logs(error=OSError("/run/secret.sock broke"))) as address:
        answer = await get(address, "/logs/service-1")
    assert answer.status == 503
    assert b"secret" not in answer.body


async def test_a_stream_that_breaks_off_says_so_at_its_end() -> None:
    guest = guest_with_logs(breaks=OSError("engine restarted"))
    async with served(guest) as address:
        answer = await get(address, "/logs/service-1")
    assert answer.body.startswith(b"first line\nsecond line\n")
    assert b"broke off" in answer.body
    assert guest.engine.open_streams == 0


async def test_a_bad_query_is_400_with_what_is_allowed() -> None:
    guest = guest_with_logs()
    async with served(guest) as address:
        answer = await get(address, "/logs/service-1?tail=-1")
    assert answer.status == 400
    assert answer.body == b"tail must be a number from 0 to 100000, or all\n"
    assert guest.engine.asked == []


async def test_head_tells_that_the_log_is_there_without_opening_it() -> None:
    guest = guest_with_logs()
    async with served(guest) as address:
        assert (await get(address, "/logs/service-1?follow", method="HEAD")).status == 200
    assert guest.engine.asked == []


async def test_the_ninth_stream_is_503_until_one_ends() -> None:
    guest = guest_with_logs(output=[b"x"])
    async with served(guest) as address, asyncio.timeout(BOUND_SECONDS):
        held = []
        for _ in range(8):
            reader, writer = await connect(address)
            writer.write(request("/logs/service-1?follow"))
            assert (await read_head(reader))[0] == 200
            held.append(writer)
        assert (await get(address, "/logs/service-1")).status == 503
        assert (await get(address, "/metrics")).status == 200
        await close(held[0])

        async def has_room() -> bool:
            return (await get(address, "/logs/service-1")).status != 503

        await eventually(has_room)
        for writer in held[1:]:
            await close(writer)


async def test_refused_requests_hold_no_place() -> None:
    async with served(guest_with_logs()) as address:
        for _ in range(10):
            assert (await get(address, "/logs/nobody")).status == 404
            assert (await get(address, "/logs/service-1", method="HEAD")).status == 200
        assert (await get(address, "/logs/service-1")).status == 200


async def test_a_stream_ends_after_its_time_and_closes_its_source() -> None:
    engine = Engine(output=[b"x\n"])
    chunks = engine.logs("x", since=None, until=None, tail=None, follow=True, timestamps=False)
    stream = BoundedStream(chunks, stopping=asyncio.Event(), seconds=0.05)
    assert await anext(stream) == b"x\n"
    with pytest.raises(TimeoutError):
        await anext(stream)
    await stream.aclose()
    assert engine.open_streams == 0


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ([], LogQuery()),
        ([("since", "1700000000.5")], LogQuery(since=1700000000.5)),
        ([("since", "90s"), ("until", "1m")], LogQuery(since=NOW - 90, until=NOW - 60)),
        ([("since", "2h")], LogQuery(since=NOW - 7200)),
        ([("since", "1d")], LogQuery(since=NOW - 86400)),
        ([("since", "999999999w")], LogQuery(since=0)),
        ([("tail", "all")], LogQuery(tail=None)),
        ([("tail", "0")], LogQuery(tail=0)),
        ([("tail", "")], LogQuery(tail=1000)),
        ([("follow", ""), ("timestamps", "1")], LogQuery(follow=True, timestamps=True)),
        ([("follow", "false"), ("timestamps", "no")], LogQuery()),
    ],
)
def test_a_query_is_read_as_people_write_it(query: list[tuple[str, str]], wanted: LogQuery) -> None:
    assert parse_log_query(query, NOW) == wanted


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ([("tails", "5")], "'tails' is no parameter; known are since, until, tail, follow, timestamps"),
        ([("tail", "5"), ("tail", "6")], "tail is given twice"),
        ([("tail", "100001")], "tail must be"),
        ([("tail", "1e3")], "tail must be"),
        ([("tail", "٣")], "tail must be"),
        ([("since", "yesterday")], "since must be"),
        ([("since", "-5")], "since must be"),
        ([("since", "10 m")], "since must be"),
        ([("until", "999999999999")], "until must be"),
        ([("since", "1m"), ("until", "1h")], "since is later than until"),
        ([("follow", "maybe")], "follow must be"),
    ],
)
def test_a_query_that_says_something_else_is_refused_with_what_is_allowed(query: list[tuple[str, str]], says: str) -> None:
    with pytest.raises(LogQueryError) as refused:
        parse_log_query(query, NOW)
    assert str(refused.value).startswith(says)


@given(st.lists(st.tuples(st.sampled_from(["since", "until", "tail", "follow", "timestamps", "x"]), st.text()), max_size=4))
def test_no_query_does_anything_but_parse_or_be_refused_in_one_line(query: list[tuple[str, str]]) -> None:
    said = ""
    try:
        parse_log_query(query, NOW)
    except LogQueryError as refused:
        said = str(refused)
    assert "\n" not in said
    assert len(said) < 200


def test_a_container_is_found_by_name_id_or_the_unmistakable_beginning_of_its_id() -> None:
    one, two = "aaaaaaaaaaaa1111", "aaaaaaaaaaaa2222"
    listed = [Container(id=one, names=["/web"]), Container(id=two, names=["/db", "/web/alias"])]
    assert find_container(listed, "web") == one
    assert find_container(listed, "web/alias") == two
    assert find_container(listed, two) == two
    assert find_container(listed, "aaaaaaaaaaaa1") == one
    assert find_container(listed, "aaaaaaaaaaaa") is None
    assert find_container(listed, "aaaaaaaaaaa") is None
    assert find_container(listed, "") is None
