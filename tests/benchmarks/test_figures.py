"""What a benchmark says of its figures: met, missed or not to be believed; and that every benchmark runs and leaves JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import figures, results
from benchmarks.figures import Figure, Report


@pytest.mark.parametrize(
    ("rounds", "target", "at_least", "verdict"),
    [
        ((1.0, 1.01, 1.0, 0.99, 1.0), 1.1, False, "MET"),
        ((1.2, 1.21, 1.2, 1.19, 1.2), 1.1, False, "MISSED"),
        ((0.8, 1.0, 1.3, 0.9, 1.2), 1.1, False, "MET, noisy"),
        ((1.0, 1.15, 1.4, 0.9, 1.3), 1.1, False, "MISSED, noisy"),
        ((3.1, 3.2, 3.0, 3.1, 3.1), 2.5, True, "MET"),
        ((2.1, 2.2, 2.0, 2.1, 2.1), 2.5, True, "MISSED"),
        ((1.0, 1.0, 1.0), 1.1, False, "MET, few rounds"),
        ((1.0, 1.0, 9.0, 1.0, 1.0), 1.1, False, "MET"),
        ((1.0,), None, False, ""),
        ((0.0,) * 5, 0.0, False, "MET"),
        ((1.0,) * 5, 0.0, False, "MISSED"),
    ],
)
def test_a_figure_is_judged_by_its_median_and_believed_by_its_spread(
    rounds: tuple[float, ...], target: float | None, at_least: bool, verdict: str
) -> None:
    assert Figure("ratio", rounds, "x", target, at_least).verdict == verdict


def test_a_run_says_what_it_measured_on_which_machine_and_fails_where_a_target_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    report = Report("forward", "What forwarding costs.")
    report.add("added p50 / bare", [1.1, 1.35, 1.3, 1.2, 1.2], "x", 1.25)
    assert report.end() == 0
    report.add("CPU / bare", [1.5] * 5, "x", 1.35)
    assert report.end() == 1
    run = json.loads((tmp_path / "forward.json").read_text())
    assert [figure["verdict"] for figure in run["figures"]] == ["MET, noisy", "MISSED"]
    assert run["machine"]["cores"] >= 1
    assert run["machine"]["commit"]
    printed = capsys.readouterr().out
    assert "CPU / bare" in printed
    assert "MISSED" in printed


def test_a_table_is_written_into_its_place_and_nothing_else_of_the_page_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    report = Report("gate", "What the gate costs.")
    report.add("gated / a constant", [1.02] * 5, "x", 1.05)
    report.end()
    made = results.table(json.loads((tmp_path / "gate.json").read_text()))
    page = "# Results\n\nBefore.\n\n<!-- figures: gate -->\nold\n<!-- end -->\n\nAfter.\n"
    written = results.written(page, {"gate": made})
    assert written.startswith("# Results\n\nBefore.\n\n<!-- figures: gate -->\nWhat the gate costs.")
    assert "| gated / a constant | 1.020 x | 0.000 | 1.05 x | MET |" in written
    assert written.endswith("<!-- end -->\n\nAfter.\n")
    assert results.written(written, {"gate": made}) == written
    added = results.written("# Results\n", {"gate": made})
    assert results.written(added, {"gate": made}) == added
