"""Every door: its corpus again, and a few new inputs. `make fuzz` tries many more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.door import Door, replay
from tests.fuzz.doors import DOORS

by_door = pytest.mark.parametrize("door", DOORS, ids=[door.name for door in DOORS])


@by_door
def test_no_input_that_was_ever_kept_breaks_a_door(door: Door) -> None:
    assert replay(door) >= 3, f"{door.folder} should show what the door is about"


@by_door
def test_no_new_input_breaks_a_door(door: Door) -> None:
    check: Callable[[bytes], None] = door.check

    @settings(max_examples=door.examples, suppress_health_check=list(HealthCheck), deadline=None)
    @given(door.all_inputs())
    def tried(data: bytes) -> None:
        check(data)

    tried()
