"""Which failed calls are explained by what was done to their guests."""

from __future__ import annotations

import pytest

from soak.judging import DIRECT, GPUS_UNKNOWN, MISSING, SETTLING_SECONDS, Book, Kind


def book_with(kind: Kind, guest: str, began: float, ended: float | None) -> Book:
    book = Book()
    book.begin(guest, kind, began).ended = ended
    return book


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (Kind.HANGS, "DEADLINE_EXCEEDED"),
        (Kind.HANGS, "RESOURCE_EXHAUSTED"),
        (Kind.GONE, "NOT_FOUND"),
        (Kind.GONE, MISSING),
        (Kind.KILLED, "UNAVAILABLE"),
        (Kind.COLLECTOR_KILLED, GPUS_UNKNOWN),
    ],
)
def test_a_disturbance_explains_its_own_guests_failure_while_it_lasts_and_shortly_after(kind: Kind, status: str) -> None:
    book = book_with(kind, "vm1", 10, 20)
    for began, ended in ((5, 10), (12, 13), (19, 30), (20 + SETTLING_SECONDS, 30)):
        book.note("gpu_info", "vm1", began, ended, status=status)
    assert book.lost() == []
    book.note("gpu_info", "vm1", 5, 9.9, status=status)
    book.note("gpu_info", "vm1", 20.1 + SETTLING_SECONDS, 30, status=status)
    assert len(book.lost()) == 2


def test_a_disturbance_explains_nothing_about_another_guest_or_none() -> None:
    book = book_with(Kind.HANGS, "vm1", 10, None)
    book.note("gpu_info", "vm2", 11, 12, status="DEADLINE_EXCEEDED")
    book.note("list_guests", "", 11, 12, status="DEADLINE_EXCEEDED")
    assert len(book.lost()) == 2


@pytest.mark.parametrize(
    ("kind", "status"),
    [(Kind.HANGS, "INTERNAL"), (Kind.HANGS, "NOT_FOUND"), (Kind.KILLED, "DEADLINE_EXCEEDED"), (Kind.GONE, "TWICE")],
)
def test_a_disturbance_explains_no_status_that_it_cannot_cause(kind: Kind, status: str) -> None:
    book = book_with(kind, "vm1", 10, None)
    book.note("gpu_info", "vm1", 11, 12, status=status)
    assert [failure.status for failure in book.lost()] == [status]


def test_the_proxys_death_explains_every_call_through_it_and_none_to_an_agent_itself() -> None:
    book = book_with(Kind.PROXY_KILLED, "", 10, 11)
    book.note("gpu_info", "vm1", 10.5, 10.6, status="UNAVAILABLE")
    book.note("scrape", "", 10.5, 10.6, status="BAD_PAGE")
    assert book.lost() == []
    book.note("asked directly", f"{DIRECT}vm1", 10.5, 10.6, status="UNAVAILABLE")
    assert len(book.lost()) == 1


def test_a_hostile_guest_may_fail_in_its_own_way_only() -> None:
    book = Book(always={"broken": frozenset({"INTERNAL"})})
    book.note("gpu_info", "broken", 1, 2, status="INTERNAL")
    book.note("gpu_info", "broken", 1, 2, status="UNKNOWN")
    assert [failure.status for failure in book.lost()] == ["UNKNOWN"]
    assert book.explained() == {("gpu_info", "INTERNAL", "always so"): 1}


def test_a_call_that_ended_well_is_counted_and_no_failure() -> None:
    book = Book()
    book.note("gpu_info", "vm1", 1, 2)
    assert (book.calls["gpu_info"], book.failures) == (1, [])
