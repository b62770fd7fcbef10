"""What stands in a guest's rows, and the half hour that is remembered of each card."""

from __future__ import annotations

import re

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guest_api.guest_api_pb2 import GpuDevice, GpuInfoResponse
from guest_contract import words
from guest_contract.card_fields import ROWS, page_title
from guest_contract.card_row import Field
from guest_transport.addresses import UnixAddress
from tests.guest_contract import test_health as health_examples
from tests.http.guests import h200s
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.errors import CallError
from vmm_proxy.metrics.last_answers import KEEP_SECONDS, LastKnown
from vmm_proxy.pages.dashboard.history import CARDS_LIMIT, SLOT_SECONDS, SLOTS, History
from vmm_proxy.pages.dashboard.render import Pages
from vmm_proxy.pages.dashboard.summary import summary
from vmm_proxy.pages.dashboard.view import GuestRows, graph_line, guest_rows
from vmm_proxy.upstream.reachability import Reachability, ReachabilityState

ENTRY = GuestEntry("vm-a", UnixAddress("/nowhere"), labels={"rack": "r7"})
NOW = 10_000.0
PAGES = Pages("1")


class Time:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def card(utilization: int | None = None, **fields: object) -> GpuDevice:
    device = GpuDevice(uuid="GPU-1", pci_bus_id="0000:01:00.0", **fields)  # type: ignore[arg-type] # a test's shorthand
    if utilization is not None:
        device.utilization_gpu = utilization
    return device


def answered(reply: GpuInfoResponse, seconds_ago: float = 0.0) -> LastKnown:
    known = LastKnown(ENTRY, Reachability(ReachabilityState.SERVING), look_seconds=0.01)
    known.gpus.answer, known.gpus.received_at = reply, NOW - seconds_ago
    return known


def failed(known: LastKnown, text: str = "guest vm-a: unreachable: connection refused") -> LastKnown:
    for part in (known.gpus, known.system):
        part.failure = CallError(grpc.StatusCode.UNAVAILABLE, text)
    known.reachability.state = ReachabilityState.UNREACHABLE
    return known


def rows(known: LastKnown | None) -> GuestRows:
    return guest_rows(ENTRY, known, History(lambda: NOW), NOW)


def test_a_slot_keeps_its_highest_value_and_a_slot_without_a_look_is_empty() -> None:
    time = Time()
    history = History(time)
    for utilization in (10, 90, 20):
        history.note("vm-a", [card(utilization)])
    time.now += 3 * SLOT_SECONDS
    history.note("vm-a", [card(5)])
    time.now += SLOT_SECONDS
    assert list(history.of("vm-a", card()))[-6:] == [None, 90, None, None, 5, None]
    assert len(history.of("vm-a", card())) == SLOTS


def test_half_an_hour_later_nothing_is_left_of_it() -> None:
    time = Time()
    history = History(time)
    history.note("vm-a", [card(50)])
    time.now += SLOTS * SLOT_SECONDS
    assert set(history.of("vm-a", card())) == {None}


def test_an_unknown_value_is_a_gap_and_zero_is_not() -> None:
    history = History(Time())
    history.note("vm-a", [card()])
    assert history.of("vm-a", card())[-1] is None
    history.note("vm-a", [card(0)])
    assert history.of("vm-a", card())[-1] == 0


def test_a_card_that_moves_to_another_index_keeps_its_history() -> None:
    history = History(Time())
    history.note("vm-a", [card(50, index=0)])
    assert history.of("vm-a", card(index=3))[-1] == 50


def test_what_a_guest_can_make_the_proxy_remember_is_bounded() -> None:
    history = History(Time())
    for turn in range(10):
        cards = [GpuDevice(index=n, uuid=f"{turn}-{n}-{'x' * 10_000}", utilization_gpu=1) for n in range(1000)]
        history.note("vm-a", cards)
        assert [bool(history.of("vm-a", each)) for each in cards] == [n < CARDS_LIMIT for n in range(1000)]
    assert not any(history.of("vm-a", GpuDevice(uuid=f"{turn}-0-{'x' * 10_000}")) for turn in range(9))
    # Of a UUID the beginning is kept: one that differs later is the same card.
    assert history.of("vm-a", GpuDevice(uuid=f"9-0-{'x' * 200}y"))
    history.forget("vm-a")
    assert not any(history.of("vm-a", each) for each in cards)


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(0, 100), max_size=SLOTS))
def test_a_graph_stays_inside_its_box_and_breaks_at_every_gap(past: list[int | None]) -> None:
    line = graph_line(past)
    known = [value for value in past if value is not None]
    assert line.count("M") + line.count("L") == len(known)
    starts = sum(value is not None and (at == 0 or past[at - 1] is None) for at, value in enumerate(past))
    assert line.count("M") == starts


@pytest.mark.parametrize(
    ("known", "state", "note"),
    [
        (None, "stopped", "Stopped"),
        (LastKnown(ENTRY, Reachability()), "waiting", "No answer yet"),
        (
            LastKnown(ENTRY, Reachability(ReachabilityState.UNREACHABLE, "guest vm-a: no answer within 1.00 s")),
            "down",
            "no answer within 1.00 s",
        ),
        (failed(LastKnown(ENTRY, Reachability())), "down", "unreachable: connection refused"),
        (answered(GpuInfoResponse()), "up", "No NVIDIA GPUs"),
        (answered(GpuInfoResponse(error="NVIDIA driver is not loaded")), "up", "NVIDIA driver is not loaded"),
        (answered(h200s(1)), "up", ""),
        (failed(answered(h200s(1), 60)), "down", "unreachable: connection refused"),
        (failed(answered(h200s(1), KEEP_SECONDS + 1)), "down", "unreachable: connection refused"),
    ],
)
def test_each_state_of_a_guest_says_what_it_is(known: LastKnown | None, state: str, note: str) -> None:
    shown = rows(known)
    assert (shown.head.state, shown.head.note) == (state, note)


def test_the_last_answer_of_a_dead_guest_is_shown_with_its_age_until_it_is_too_old() -> None:
    assert (rows(failed(answered(h200s(1), 60))).head.age_label, rows(failed(answered(h200s(1), 60))).head.age_words) == (
        "sample",
        "61.2 s",
    )
    old = rows(failed(answered(h200s(1), 7500)))
    assert old.cards == ()
    assert (old.head.age_label, old.head.age_words) == ("last answer", "2h 5m")


def test_what_is_unset_is_a_dash_and_never_a_zero() -> None:
    reply = GpuInfoResponse()
    reply.gpus.add(index=1)
    [shown] = rows(answered(reply)).cards
    assert (shown.uuid, shown.pci, *(cell.words for cell in shown.cells)) == ("–",) * 6  # noqa: RUF001 - the page's dash
    assert {cell.fill for cell in shown.cells} == {None}
    measured = rows(answered(h200s(1))).cards[0].cells[0]
    assert (measured.title, measured.words, measured.fill) == ("Utilization", "0 %", 0)


def test_an_impossible_value_is_unknown_in_cells_sort_keys_sums_and_the_graph() -> None:
    reply = h200s(2)
    reply.gpus[0].MergeFrom(card(4_000_000_000, power_usage_mw=2**32 - 1, memory_used_bytes=2**64 - 1, temperature_c=2**31))
    known = answered(reply)
    before = reply.SerializeToString(deterministic=True)
    history = History(lambda: NOW)
    history.note("vm-a", reply.gpus)
    shown = guest_rows(ENTRY, known, history, NOW)
    assert [cell.words.partition(" / ")[0] for cell in shown.cards[0].cells] == ["–"] * 4  # noqa: RUF001 - the page's dash
    assert [cell.graph for cell in shown.cards[0].cells] == ["", None, None, None]
    assert [error.partition(":")[0] for error in shown.cards[0].errors] == ["utilization", "memory", "temperature", "power"]
    good = guest_rows(ENTRY, answered(GpuInfoResponse(gpus=reply.gpus[1:])), history, NOW)
    assert {**shown.keys, "age": ""} == {**good.keys, "age": ""}
    chips = {name: words for name, words, _ in summary([known], 1, NOW).chips}
    assert chips["Power"].endswith(" (1 of 2)")
    assert reply.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("row", [row for row in ROWS if row.on_fleet_page], ids=lambda row: row.name)
def test_a_row_of_the_table_is_a_column_of_the_fleet_s_page(row: Field) -> None:
    reply = GpuInfoResponse()
    reply.gpus.add(**{row.name: row.most})
    html = PAGES.guest(rows(answered(reply)))
    assert re.search(rf'data-label="{page_title(row)}"[^>]*>\s*(<span[^>]*>)?{re.escape(words.say(row, row.most))}', html)
    head = PAGES.head(summary([], 0, NOW)).decode()
    assert f'<th scope="col">{page_title(row)}</th>' in head
    assert not row.sort or (f'<option value="{row.sort}">' in head and f' data-{row.sort}="' in html)


def test_a_card_that_the_driver_lost_is_missed_on_the_fleet_s_page() -> None:
    reply = h200s(7)
    reply.pci_devices = 8
    assert "A card is missing: 8 on the PCI bus, 7 seen by the driver" in PAGES.guest(rows(answered(reply)))
    reply.pci_devices = 7
    assert "missing" not in PAGES.guest(rows(answered(reply)))


@pytest.mark.parametrize(
    ("enabled", "ready", "words"),
    [
        (None, None, "CC unknown"),
        (False, None, "CC off"),
        (True, True, "CC ready"),
        (True, False, "CC not ready"),
        (True, None, "CC on"),
    ],
)
def test_confidential_computing_has_five_answers(enabled: bool | None, ready: bool | None, words: str) -> None:
    reply = h200s(1)
    for field, value in (("cc_enabled", enabled), ("cc_ready", ready)):
        reply.ClearField(field)  # type: ignore[arg-type] # the stubs want each name as a type of its own
        if value is not None:
            setattr(reply, field, value)
    assert rows(answered(reply)).head.cc == words
    reply.cc_devtools = False
    assert rows(answered(reply)).head.cc == words


def test_devtools_is_said_where_it_is_on() -> None:
    reply = h200s(1)
    reply.cc_devtools = True
    assert rows(answered(reply)).head.cc == "CC ready, DevTools on"


def test_a_thousand_cards_and_errors_are_cut_and_said_to_be() -> None:
    reply = GpuInfoResponse()
    for index in range(200):
        reply.gpus.add(index=index, errors=["x" * 10_000] * 50)
    shown = rows(answered(reply))
    assert (len(shown.cards), shown.head.more_cards) == (CARDS_LIMIT, 200 - CARDS_LIMIT)
    assert shown.cards[0].errors[-1] == "and 43 more"
    assert max(map(len, shown.cards[0].errors)) < 1000


@settings(deadline=None)
@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_of_a_guest_is_escaped_in_its_rows(uuid: str, error: str) -> None:
    reply = GpuInfoResponse()
    reply.gpus.add(uuid=f"<b>{uuid}", errors=[f"<i>{error}"])
    html = PAGES.guest(rows(answered(reply)))
    assert "<b>" not in html
    assert "<i>" not in html
    assert html.count("<tbody") == html.count("</tbody>") == 1


def test_the_summary_counts_states_and_says_of_how_many_cards_a_sum_is() -> None:
    reply = h200s(3)
    reply.gpus[2].ClearField("utilization_gpu")
    guests = [answered(reply), failed(LastKnown(ENTRY, Reachability())), LastKnown(ENTRY, Reachability())]
    chips = {name: words for name, words, _ in summary(guests, 5, NOW).chips}
    assert chips == {
        "Guests": "5", "up": "1", "down": "1", "waiting": "1", "stopped": "2", "GPUs": "3", "Utilization": "7 % (2 of 3)",
        "Memory": "140.40 GB / 421.20 GB", "Power": "449.1 W",
    }  # fmt: skip


def test_a_sum_of_nothing_is_a_dash_and_hides_no_other() -> None:
    reply = GpuInfoResponse()
    reply.gpus.add(power_usage_mw=70_100)
    reply.gpus.add(power_usage_mw=0)
    chips = {name: words for name, words, _ in summary([answered(reply)], 1, NOW).chips}
    assert (chips["Utilization"], chips["Memory"], chips["Power"]) == ("–", "–", "70.1 W")  # noqa: RUF001 - the page's dash
    assert "Power" not in {name: words for name, words, _ in summary([answered(GpuInfoResponse())], 1, NOW).chips}


def test_a_card_s_verdict_stands_in_its_row_with_why_and_what_to_do() -> None:
    lost, fine = health_examples.healthy(0), health_examples.healthy(1)
    health_examples.TROUBLE["xid_reboot"](lost)
    rows = guest_rows(ENTRY, answered(health_examples.answer(lost, fine)), History(lambda: NOW), NOW)
    assert [card.health for card in rows.cards] == ["failed", "ok"]
    assert rows.cards[0].why[0].startswith("XID 79: needs a new start. Stop and start the VM.")
    assert rows.cards[1].why == ()
