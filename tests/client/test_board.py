"""What `top` knows and shows: order, ages, guests in trouble, and frames of any size."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from google.rpc import code_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from guest_api import guest_api_pb2
from guest_client.guestctl.output.stdout import Size
from guest_client.guestctl.request import SORTS
from guest_client.guestctl.top.fleet_state import Board
from guest_client.guestctl.top.frame import frame, snapshot, totals
from guest_fleet.v1 import fleet_pb2
from tests.guest_contract.test_health import healthy

GpuDevice = guest_api_pb2.GpuDevice
GpuInfo = guest_api_pb2.GpuInfoResponse
INTERVAL = 5.0
EPOCH = 1_800_000_000.0


class Clock:
    """Moved by hand; the wall goes with it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def board(self) -> Board:
        return Board(INTERVAL, lambda: self.now, lambda: EPOCH + self.now)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _answer(guest_id: str, answer: GpuInfo, received_at: float | None = None) -> fleet_pb2.GuestGpuInfo:
    outcome = fleet_pb2.GuestGpuInfo(guest_id=guest_id, gpu_info=answer)
    if received_at is not None:
        outcome.received_at.FromMilliseconds(round(received_at * 1000))
    return outcome


def _failure(guest_id: str, code: int = code_pb2.UNAVAILABLE, message: str = "gone") -> fleet_pb2.GuestGpuInfo:
    return fleet_pb2.GuestGpuInfo(guest_id=guest_id, status=status_pb2.Status(code=code, message=message))


def _card(index: int = 0, **readings: int) -> GpuDevice:
    return GpuDevice(index=index, **readings)  # type: ignore[arg-type] # a test's shorthand


def _order(board: Board, sort: str) -> list[tuple[str, int]]:
    return [(entry.guest_id, card.index) for entry, card in board.cards(sort)]


def _age(board: Board, guest_id: str) -> float | None:
    (entry,) = (entry for entry in board.entries() if entry.guest_id == guest_id)
    return board.age_seconds(entry)


def _texts(lines: Iterable[object]) -> list[str]:
    return [str(line) for line in lines]


def test_cards_are_in_the_order_of_the_reading_that_was_asked_for_and_unknown_is_not_idle(clock: Clock) -> None:
    board = clock.board()
    board.tell(_answer("b", GpuInfo(gpus=[_card(1, utilization_gpu=0, temperature_c=90), _card(0, utilization_gpu=50)])))
    board.tell(_answer("a", GpuInfo(gpus=[_card(0), _card(1, utilization_gpu=50, memory_used_bytes=7, power_usage_mw=3)])))
    assert _order(board, "utilization") == [("a", 1), ("b", 0), ("b", 1), ("a", 0)]
    assert _order(board, "memory") == [("a", 1), ("b", 0), ("b", 1), ("a", 0)]
    assert _order(board, "power") == [("a", 1), ("b", 0), ("b", 1), ("a", 0)]
    assert _order(board, "temperature")[0] == ("b", 1)
    assert _order(board, "guest") == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_an_age_counts_on_while_nothing_comes_and_also_through_a_failure(clock: Clock) -> None:
    board = clock.board()
    board.tell(_answer("a", GpuInfo(gpus=[_card()], sample_age_ms=2500)))
    assert _age(board, "a") == 2.5
    clock.now += 10
    assert _age(board, "a") == 12.5
    board.tell(_failure("a"))
    assert _age(board, "a") == 12.5
    assert "(last sample 12s old)" in str(snapshot(board, "utilization", 200)[1])
    board.tell(_answer("a", GpuInfo(gpus=[_card()], sample_age_ms=0)))
    assert _age(board, "a") == 0
    board.tell(_answer("a", GpuInfo()))
    assert _age(board, "a") is None


def test_an_outcome_that_the_proxy_had_kept_is_older_than_the_guest_said(clock: Clock) -> None:
    """A second watcher of an interval is given the last outcomes at once."""
    board = clock.board()
    board.new_stream()
    kept = _answer("a", GpuInfo(gpus=[_card()], sample_age_ms=1000), EPOCH + clock.now - 4)
    board.tell(kept)
    assert _age(board, "a") == 5
    clock.now += 1
    board.tell(_answer("a", GpuInfo(gpus=[_card()], sample_age_ms=1000), EPOCH + clock.now - 4))
    assert _age(board, "a") == 1, "later ones come as they are had: what differs is the other machine's clock"


@pytest.mark.parametrize("skew", [-86400.0, 86400.0])
def test_a_proxy_whose_clock_is_wrong_makes_no_age_negative_nor_wrong_by_more_than_an_interval(clock: Clock, skew: float) -> None:
    board = clock.board()
    board.new_stream()
    board.tell(_answer("a", GpuInfo(gpus=[_card()], sample_age_ms=1000), EPOCH + clock.now + skew))
    age = _age(board, "a")
    assert age is not None
    assert 1 <= age <= 1 + INTERVAL


def test_a_guest_is_there_before_its_first_answer_and_gone_when_the_list_says_so(clock: Clock) -> None:
    board = clock.board()
    board.expect([fleet_pb2.Guest(id="a"), fleet_pb2.Guest(id="b", state=fleet_pb2.GUEST_STATE_STOPPED)])
    assert not board.all_heard()
    assert _texts(snapshot(board, "guest", 200))[1:] == ["a: no answer yet", "b: stopped"]
    board.tell(_answer("a", GpuInfo(gpus=[_card()])))
    board.tell(_failure("b", code_pb2.FAILED_PRECONDITION, "guest b: stopped"))
    assert board.all_heard()
    assert str(totals(board)) == "2 guests; 1 GPU, at –, memory –, power –", "a stopped guest is no trouble"  # noqa: RUF001 - what the totals show
    board.expect([fleet_pb2.Guest(id="b", state=fleet_pb2.GUEST_STATE_STOPPED)])
    assert [entry.guest_id for entry in board.entries()] == ["b"]


def test_another_vm_in_the_place_of_a_pinned_guest_is_trouble_and_not_a_stopped_guest(clock: Clock) -> None:
    board = clock.board()
    board.expect([fleet_pb2.Guest(id="a", state=fleet_pb2.GUEST_STATE_UNREACHABLE)])
    board.tell(_failure("a", code_pb2.FAILED_PRECONDITION, "guest a: is another VM"))
    assert _texts(snapshot(board, "guest", 200))[1:] == ["a: failed precondition: is another VM"]


def test_an_id_that_is_unknown_stays_in_view(clock: Clock) -> None:
    board = clock.board()
    assert not board.all_heard(["nosuch"])
    board.tell(_failure("nosuch", code_pb2.NOT_FOUND, "guest nosuch: not known"))
    assert board.all_heard(["nosuch"])
    board.expect([])
    assert [entry.guest_id for entry in board.entries()] == ["nosuch"]


def _fleet(clock: Clock, guests: int, failing: int) -> Board:
    board = clock.board()
    for number in range(guests):
        cards = [
            _card(index, utilization_gpu=number % 100, memory_used_bytes=2**37, memory_total_bytes=2**40) for index in range(8)
        ]
        for card in cards:
            card.uuid, card.pci_bus_id = f"GPU-8e1f0a03-2c47-4d6b-a9f0-53b7c6d1e20{card.index}", f"00000000:1{card.index}:00.0"
        board.tell(_answer(f"vm{number:03}", GpuInfo(gpus=cards, sample_age_ms=1)))
    for number in range(failing):
        board.tell(_failure(f"dead{number:03}"))
    return board


def test_many_dead_guests_leave_room_for_the_cards_and_are_counted(clock: Clock) -> None:
    board = _fleet(clock, 10, 50)
    lines = _texts(frame(board, "utilization", 0, Size(120, 24), "").lines)
    assert lines[0].startswith("60 guests, 50 failing; 80 GPUs")
    assert [line for line in lines if line.startswith("dead")] == [f"dead{n:03}: unavailable: gone" for n in range(4)]
    assert lines[5] == "and 46 more guests in trouble"
    assert sum(line.startswith("vm") for line in lines) == 24 - 6 - 2


def test_scrolling_reaches_every_card_and_ends_there(clock: Clock) -> None:
    board = _fleet(clock, 10, 0)
    board.tell(_answer("zz", GpuInfo()))
    seen: set[tuple[str, str]] = set()
    offset = 0
    while True:
        made = frame(board, "guest", offset, Size(120, 24), "")
        assert len(made.lines) == 24
        seen |= {(line.split()[0], line.split()[1]) for line in _texts(made.lines) if line.startswith(("vm", "zz"))}
        if offset >= made.last_offset:
            break
        offset += 10
    assert len(seen) == 81
    last = frame(board, "guest", 10_000, Size(120, 24), "").lines
    assert _texts(last)[-2].startswith("zz: no NVIDIA GPU")


@given(st.integers(20, 200), st.integers(5, 60), st.integers(0, 30), st.integers(0, 30), st.sampled_from(SORTS), st.booleans())
def test_a_frame_has_a_terminals_lines_and_whole_numbers_whatever_its_size(
    columns: int, lines: int, guests: int, failing: int, sort: str, in_trouble: bool
) -> None:
    board = _fleet(Clock(), guests, failing)
    made = frame(board, sort, 0, Size(columns, lines), "no proxy" if in_trouble else "")
    texts = _texts(made.lines)
    shown = [text for text in texts if text.startswith("vm")]
    assert len(texts) >= lines or not shown
    for text in shown:
        assert cell_len(text) <= max(columns, 20), "what is over the edge would be cut"
        assert text.split()[1].isdigit()
    if lines >= 8:
        assert len(texts) == lines
        assert ("no proxy" in texts) == in_trouble


def test_a_narrow_terminal_keeps_who_and_how_busy(clock: Clock) -> None:
    board = clock.board()
    name = "a-very-long-name-of-a-guest-" + "x" * 100
    board.tell(_answer(name, GpuInfo(gpus=[_card(3, utilization_gpu=77, power_usage_mw=1000)])))
    (row,) = [line for line in _texts(frame(board, "power", 0, Size(30, 10), "").lines) if line.startswith("a-very")]
    assert cell_len(row) <= 30
    assert "…" in row
    assert row.split()[-3:] == ["3", "77", "%"] or "77 %" in row


def test_errors_of_a_card_are_counted_in_a_column_of_their_own(clock: Clock) -> None:
    board = clock.board()
    board.tell(_answer("a", GpuInfo(gpus=[GpuDevice(index=0, errors=["device: GPU is lost", "uuid: GPU is lost"]), _card(1)])))
    _, titles, first, second = _texts(snapshot(board, "guest", 200))
    assert titles.endswith("Errors")
    assert first.endswith(" 2")
    assert second.endswith("–")  # noqa: RUF001 - what the table shows


def test_health_is_a_column_that_a_narrow_terminal_leaves_out_last_and_sick_cards_are_counted(clock: Clock) -> None:
    board = clock.board()
    sick = healthy(1)
    sick.row_remap_pending = True
    board.tell(_answer("a", GpuInfo(gpus=[healthy(0), sick], groups=["health"])))
    total, titles, first, second = _texts(snapshot(board, "guest", 200))
    assert total.startswith("1 guest, 1 card not ok; 2 GPUs")
    assert titles.split()[:3] == ["Guest", "GPU", "Health"]
    assert (first.split()[:3], second.split()[:3]) == (["a", "0", "ok"], ["a", "1", "degraded"])
    for columns in range(200, 20, -1):
        (shown,) = [text for text in _texts(frame(board, "guest", 0, Size(columns, 10), "").lines) if text.startswith("Guest")]
        if "Health" not in shown:
            assert shown.split() == ["Guest", "GPU", "GPU", "%"]
            break
    else:
        pytest.fail("never left out")


def test_a_card_that_a_guest_tells_twice_is_there_once(clock: Clock) -> None:
    board = clock.board()
    board.tell(_answer("a", GpuInfo(gpus=[healthy(1), healthy(0), healthy(0)], groups=["health"])))
    assert _order(board, "guest") == [("a", 0), ("a", 1)]
    assert str(totals(board)).startswith("1 guest; 2 GPUs")


def test_a_reason_of_any_length_is_one_short_line_and_the_first_of_them_leaves_room_for_the_others(clock: Clock) -> None:
    board = clock.board()
    board.tell(_answer("a", GpuInfo(error="\x1b" * 60_000)))
    board.tell(_failure("b", message="y" * 60_000))
    lines = _texts(snapshot(board, "guest", 20_000))
    assert [line[:3] for line in lines[1:]] == ["a: ", "b: "]
    assert max(map(len, lines)) < 500
