"""Attackers send what they say, to loopback only, and a run is judged by every bound; peers are the h2 package's, on real sockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived, StreamEnded, StreamReset
from hpack import Decoder

from soak import frames
from soak.attack import Found, judge
from soak.attack_rows import ATTACK_MEMORY_BYTES, CALM, MEBIBYTE, Row, rows
from soak.attackers import ATTACKS, FIELD_BYTES, FIELDS, attack, target_of
from soak.attacking_guests import GUESTS, METHODS

SECONDS = 60.0


async def seen_of(name: str, enough: Callable[[Counter[type[Event]]], bool]) -> Counter[type[Event]]:
    """What a real HTTP/2 server saw of an attacker until it was `enough`."""
    seen: Counter[type[Event]] = Counter()
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = H2Connection(H2Configuration(client_side=False))
        # Nothing is answered here, so the peer has as many calls as it likes.
        connection.local_settings.max_concurrent_streams = 2**31 - 1
        connection.local_settings.acknowledge()
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        while not done.is_set() and (data := await reader.read(65536)):
            for event in connection.receive_data(data):
                seen[type(event)] += 1
                if isinstance(event, DataReceived):
                    connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if enough(seen):
                done.set()
            writer.write(connection.data_to_send())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    attacking = asyncio.create_task(attack(name, SECONDS, target_of(f"{host}:{port}", "/a.B/C", "token")))
    try:
        await asyncio.wait_for(done.wait(), SECONDS)
    finally:
        attacking.cancel()
        await asyncio.gather(attacking, return_exceptions=True)
        server.close()
    return seen


async def test_calls_without_a_body_stay_open_on_all_connections() -> None:
    seen = await seen_of("bodiless", lambda seen: seen[RequestReceived] >= 1200)
    assert seen[RequestReceived] == 1200
    assert not seen[StreamEnded]
    assert not seen[StreamReset]


async def test_each_rapid_call_is_reset() -> None:
    seen = await seen_of("resets", lambda seen: seen[StreamReset] >= 200)
    assert seen[RequestReceived] - seen[StreamReset] <= 100
    assert not seen[DataReceived]


async def test_endless_calls_are_whole() -> None:
    seen = await seen_of("endless", lambda seen: seen[StreamEnded] >= 200)
    assert seen[RequestReceived] >= seen[StreamEnded] >= 200


async def test_4_gib_are_announced_and_the_window_is_obeyed() -> None:
    # h2 ends a connection whose flow control is not obeyed, and then no second window would come.
    seen = await seen_of("announced", lambda seen: seen[DataReceived] >= 20)
    assert not seen[StreamEnded]


def test_a_header_block_unpacks_to_far_more_than_it_is() -> None:
    decoder = Decoder()
    first = frames.request("/a.B/C", ("authorization", "Bearer " + "t" * 200)) + frames.remembered("x", "a" * FIELD_BYTES)
    assert dict(decoder.decode(first, raw=True))[b"authorization"] == b"Bearer " + b"t" * 200
    block = frames.request("/a.B/C") + frames.NEWEST * FIELDS
    fields = decoder.decode(block, raw=True)
    assert dict(fields)[b":path"] == b"/a.B/C"
    assert sum(len(value) for _, value in fields) > 50 * len(block)


def test_frames_come_whole_out_of_any_pieces() -> None:
    sent = [
        (frames.PING, 0, 0, b"12345678"),
        (frames.HEADERS, frames.END_HEADERS, 2**31 - 1, b"x" * 300),
        (frames.DATA, 0, 3, b""),
    ]
    data = b"".join(frames.frame(*each) for each in sent)
    for size in (1, 7, len(data)):
        taken = frames.Frames()
        assert [each for at in range(0, len(data), size) for each in taken.take(data[at : at + size])] == sent


@pytest.mark.parametrize("address", ["192.0.2.1:80", "8.8.8.8:53", "[2001:db8::1]:80", "host.example:80", "0.0.0.0:80"])
def test_nothing_beyond_loopback_is_attacked(address: str) -> None:
    with pytest.raises(ValueError, match=r"loopback|does not appear"):
        target_of(address)


def test_each_row_has_its_attack() -> None:
    attacks = {row.attack for row in rows() if row.path and row.path != "page"}
    assert attacks == set(ATTACKS)
    assert len({(row.name, row.about) for row in rows()}) == len(rows())
    assert GUESTS * len(METHODS) == 256


def found(**more: object) -> Found:
    each = Found("a", "proxy", before_bytes=50 * MEBIBYTE, peak_bytes=60 * MEBIBYTE)
    each.seconds = {"caller": {"count": 2, "median": 0.01, "p99": 0.02, "greatest": 0.02}}
    for name, value in more.items():
        setattr(each, name, value)
    return each


SLOW = {"caller": {"count": 1, "median": 9.0, "p99": 9.0, "greatest": 9.0}}
BOUNDED = Row("a", "proxy", memory_bytes=20 * MEBIBYTE, cpu_share=0.1)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({}, ""),
        ({"failures": {"caller": {"UNAVAILABLE": 1}}}, "1 of 2 honest calls failed"),
        ({"peak_bytes": 71 * MEBIBYTE}, "21 MiB more, over 20"),
    ],
)
def test_failures_and_memory_are_judged_in_a_short_run_too(wrong: dict[str, object], reason: str) -> None:
    calm = Found(CALM, "proxy", cpu_share=0.3)
    for times in (False, True):
        reasons = judge([calm, found(**wrong)], [Row(CALM, "proxy"), BOUNDED], {}, times=times)
        assert len(reasons) == bool(reason)
        assert reason in "".join(reasons)


@pytest.mark.parametrize("wrong", [{"seconds": SLOW}, {"cpu_share": 0.41}])
def test_waits_and_shares_of_a_core_are_judged_in_a_long_run_only(wrong: dict[str, object]) -> None:
    calm = Found(CALM, "proxy", cpu_share=0.3)
    chosen = [Row(CALM, "proxy"), BOUNDED]
    assert judge([calm, found(**wrong)], chosen, {}, times=False) == []
    assert len(judge([calm, found(**wrong)], chosen, {}, times=True)) == 1


def test_a_scrape_may_take_as_long_as_its_page_needs() -> None:
    each = found(seconds={"scraper": SLOW["caller"]})
    assert each.longest()["greatest"] == 0
    assert each.calls == 1


def test_memory_that_does_not_come_back_is_a_fault() -> None:
    assert judge([], [], {"proxy": (100, 110)}, times=True) == []
    assert "at the end" in judge([], [], {"proxy": (100, 111)}, times=True)[0]


def test_a_short_run_that_ends_before_memory_is_given_back_may_keep_what_one_attack_may_take() -> None:
    assert judge([], [], {"proxy": (100, 100 + ATTACK_MEMORY_BYTES)}, times=False) == []
    assert "at the end" in judge([], [], {"proxy": (100, 101 + ATTACK_MEMORY_BYTES)}, times=False)[0]
