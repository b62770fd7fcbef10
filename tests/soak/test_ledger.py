"""What the files of a proxy must hold after its death."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from soak.ledger import NUMBER, Ledger, Promise, faults_of_audit, numbers_in_file


def registered(ledger: Ledger, guest: str, number: int) -> None:
    ledger.asked(guest, number)
    ledger.kept(guest, number, Promise("RegisterGuest", guest, number))


def test_an_answered_registration_that_is_not_there_is_a_fault() -> None:
    ledger = Ledger()
    registered(ledger, "kept-0-1", 7)
    assert ledger.faults_of({"kept-0-1": 7}, "file") == []
    assert len(ledger.faults_of({}, "file")) == 1


def test_an_answered_change_that_was_undone_is_a_fault() -> None:
    ledger = Ledger()
    registered(ledger, "kept-0-1", 7)
    registered(ledger, "kept-0-1", 8)
    assert len(ledger.faults_of({"kept-0-1": 7}, "file")) == 1


def test_an_answered_removal_that_came_back_is_a_fault() -> None:
    ledger = Ledger()
    registered(ledger, "kept-0-1", 7)
    ledger.asked("kept-0-1", None)
    ledger.kept("kept-0-1", None, Promise("DeregisterGuest", "kept-0-1", 0))
    assert len(ledger.faults_of({"kept-0-1": 7}, "file")) == 1


@pytest.mark.parametrize("seen", [{"kept-0-1": 7}, {"kept-0-1": 8}])
def test_a_change_that_was_cut_off_may_be_there_or_not_but_the_first_look_settles_it(seen: dict[str, int]) -> None:
    ledger = Ledger()
    registered(ledger, "kept-0-1", 7)
    ledger.asked("kept-0-1", 8)
    assert ledger.faults_of(seen, "file") == []
    other = {"kept-0-1": 15 - seen["kept-0-1"]}
    assert len(ledger.faults_of(other, "proxy")) == 1


def test_a_guest_that_nobody_registered_is_a_fault() -> None:
    assert Ledger().faults_of({"kept-0-1": 7}, "file") == ["file: kept-0-1 was never registered"]


def test_a_file_that_ends_in_the_middle_is_not_whole(tmp_path: Path) -> None:
    file = tmp_path / "registered.json"
    assert numbers_in_file(file) == {}
    entry = {"id": "kept-0-1", "address": "unix:/x", "labels": {NUMBER: "7"}}
    file.write_text(json.dumps({"guests": [entry, {"id": "vm1", "address": "unix:/y"}]}))
    assert numbers_in_file(file) == {"kept-0-1": 7}
    file.write_text(file.read_text()[:-9])
    with pytest.raises(ValueError, match="line 1"):
        numbers_in_file(file)


def lines_of(promise: Promise) -> list[str]:
    about = {
        "method": f"/guest_fleet.v1.DirectoryService/{promise.method}",
        "guest": promise.guest,
        "change": {"labels": {NUMBER: str(promise.number)}} if promise.number else {},
    }
    return [json.dumps({"event": "asked", **about}), json.dumps({"event": "done", "outcome": "OK", **about})]


def test_each_answered_change_needs_its_two_lines_as_often_as_it_was_answered(tmp_path: Path) -> None:
    first, removal = Promise("RegisterGuest", "kept-0-1", 7), Promise("DeregisterGuest", "kept-0-1", 0)
    promises = [first, removal, removal]
    lines = [line for promise in promises for line in lines_of(promise)]
    file = tmp_path / "audit.jsonl"
    file.write_text("\n".join(lines) + "\n")
    assert faults_of_audit(file, promises) == []
    for missing in range(len(lines)):
        file.write_text("\n".join(lines[:missing] + lines[missing + 1 :]) + "\n")
        assert len(faults_of_audit(file, promises)) == 1


def test_a_torn_line_of_the_audit_log_is_a_fault_and_one_being_written_is_not(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_text('{"event": "as\n{"event": "refused"}\n{"event": "wro')
    assert faults_of_audit(file, []) == ['audit log, line 1: no JSON: \'{"event": "as\'']
