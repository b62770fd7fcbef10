"""A server of ours as samples, from its own /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from guest_metrics import process


def test_the_process_has_the_figures_of_its_own_proc() -> None:
    figures = process.read_process()
    assert 1 < figures.resident_bytes / 2**20 < 4096
    assert figures.virtual_bytes >= figures.resident_bytes
    assert figures.threads >= 1
    assert figures.open_fds > 3
    assert figures.cpu_seconds > 0
    with Path("/dev/null").open():
        assert process.read_process().open_fds == figures.open_fds + 1


def test_a_command_with_spaces_and_parentheses_moves_no_figure() -> None:
    rest = "S 1 1 1 0 -1 4194560 1 2 3 4 250 150 5 6 20 0 9 0 1000 8192 3 18446744073709551615"
    figures = process.parse_process(
        stat=f"42 (a) b (c ) {rest}", kernel_stat="cpu 1\nbtime 1700000000\n", open_fds=5, max_fds=None
    )
    ticks = os.sysconf("SC_CLK_TCK")
    assert figures.cpu_seconds == 400 / ticks
    assert figures.threads == 9
    assert figures.start_seconds == 1_700_000_000 + 1000 / ticks
    assert figures.resident_bytes == 3 * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("stat", "kernel_stat"), [("", "btime 1"), ("1 (x) S 1", "btime 1"), ("1 (x) " + "1 " * 30, "cpu")])
def test_a_proc_that_is_not_as_documented_is_an_error_and_not_zeros(stat: str, kernel_stat: str) -> None:
    with pytest.raises(ValueError, match="proc"):
        process.parse_process(stat=stat, kernel_stat=kernel_stat, open_fds=0, max_fds=None)
