"""Reads the product's pages: the samples of /metrics and the cards of the dashboard.

Prometheus' own parser would be one more package to bring along; the product's tests hold its pages to that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ARTICLE = re.compile(r'<article class="card"[^>]* aria-label="GPU (\d+)"[^>]*>(.*?)</article>', re.DOTALL)


def series(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The samples of a /metrics page by name."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, value in _SAMPLE.findall(text):
        found.setdefault(name, []).append((dict(_LABEL.findall(labels)), float(value)))
    return found


@dataclass(frozen=True, slots=True)
class ShownCard:
    """A card as the dashboard shows it; None where it shows a dash."""

    uuid: str
    utilization_percent: float | None
    temperature_c: float | None
    power_w: float | None
    memory_used_mib: float | None
    memory_total_mib: float | None


def shown_cards(html: str) -> dict[int, ShownCard]:
    """The cards of a dashboard by index."""
    return {int(index): _card(body) for index, body in _ARTICLE.findall(html)}


def _card(body: str) -> ShownCard:
    uuid = re.search(r"GPU-[0-9A-Za-z-]+", body)
    memory = re.search(r">Memory</span><span class=\"value\">([^<]*)<", body)
    used, _, total = memory[1].partition(" / ") if memory else ("", "", "")
    return ShownCard(
        uuid=uuid[0] if uuid else "",
        utilization_percent=_number(re.search(r">Utilization</span><span class=\"value\">([^<]*)<", body)),
        temperature_c=_number(re.search(r"<dt>Temperature</dt><dd[^>]*>([^<]*)<", body)),
        power_w=_number(re.search(r"<dt>Power</dt><dd[^>]*>([^<]*)<", body)),
        memory_used_mib=_mib(used),
        memory_total_mib=_mib(total),
    )


def _number(found: re.Match[str] | None) -> float | None:
    number = re.match(r"[\d.]+", found[1]) if found else None
    return float(number[0]) if number else None


def _mib(words: str) -> float | None:
    found = re.fullmatch(r"([\d.]+) (B|KB|MB|GB|TB)", words.strip())
    return float(found[1]) * 1024 ** (("B", "KB", "MB", "GB", "TB").index(found[2]) - 2) if found else None
