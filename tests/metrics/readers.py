"""The official parser's view of a page: what any Prometheus tool written in Python would read."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from guest_metrics.exposition import Format

Labels = frozenset[tuple[str, str]]
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="missing: promtool (Debian package prometheus)")


def read(page: bytes, form: Format) -> dict[tuple[str, Labels], float]:
    """Every sample of the page; fails when a family stands twice or a sample is doubled."""
    parse = parse_text if form is Format.TEXT else parse_openmetrics
    samples: dict[tuple[str, Labels], float] = {}
    families: set[str] = set()
    for family in parse(page.decode()):
        assert family.name not in families, f"{family.name} stands twice"
        families.add(family.name)
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples, f"{key} is doubled"
            samples[key] = float(sample.value)
    return samples


def at(name: str, /, **labels: str) -> tuple[str, Labels]:
    return name, frozenset(labels.items())


def promtool_complaints(page: bytes) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=page, capture_output=True, timeout=30, check=False)
    return (done.stdout + done.stderr).decode() if done.returncode or done.stdout or done.stderr else ""
