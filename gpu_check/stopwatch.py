"""One sample, taken by the collector's own code, with what each group of values took: what sample.c tells of itself, in the same form.

    python -I stopwatch.py LIBRARY [GROUP…]

It stands where the collector writes its parts and notes the clocks at each question; what it costs itself is two readings of a clock for
each, some 1 µs. It runs as a file, so that it needs no gpu_check on the path. Rejected: taking the difference of two whole samples (a
group costs less than what two starts of NVML differ by), and clocks in the collector (every sample would read them).
"""

from __future__ import annotations

import os
import sys
import time
from itertools import pairwise

from guest_contract.card_fields import IDENTITY_QUESTIONS, LISTS, QUESTIONS_OF
from guest_service.collector.arguments import parse
from guest_service.collector.binding import binding_file
from guest_service.collector.gpu_info import sample_cards
from guest_service.collector.line import Output, to_json
from guest_service.collector.parts import Parts

# Rows beside the groups, by question; every other question is about the machine.
START, MACHINE, OPEN = "start", "machine", "open"
ROW_OF = {
    **dict.fromkeys(("library", "start", "count"), START),
    **dict.fromkeys(IDENTITY_QUESTIONS, OPEN),
    **{question: group for group, questions in QUESTIONS_OF.items() for question in questions},
    **{question: group for group, question in LISTS.items()},
}


class Stopwatch(Parts):
    """Writes the parts of a sample as the agent's collector does, and notes when each question begins."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._begun: list[tuple[str, int, int]] = []

    def at(self, card: int | None, question: str) -> None:
        """The question before ends here."""
        self._begun.append((question, time.perf_counter_ns(), time.process_time_ns()))
        super().at(card, question)

    def end(self) -> int:
        """The last question ends."""
        self._begun.append(("", time.perf_counter_ns(), time.process_time_ns()))
        return super().end()

    def cost_us(self) -> dict[str, list[int]]:
        """Row -> wall and CPU time in microseconds, over all cards."""
        found: dict[str, list[int]] = {}
        for (question, wall, cpu), (_, next_wall, next_cpu) in pairwise(self._begun):
            cost = found.setdefault(ROW_OF.get(question, MACHINE), [0, 0])
            cost[0] += next_wall - wall
            cost[1] += next_cpu - cpu
        return {row: [ns // 1000 for ns in cost] for row, cost in found.items()}


def main(library: str, groups: list[str]) -> int:
    """Take the sample, print its cost as one line of JSON; returns the exit status."""
    output = Output()
    nowhere = os.open("/dev/null", os.O_WRONLY)
    asked = ["--groups", ",".join(groups)] if groups else []
    arguments = parse(["--nvml-library", library, "--parts-to", str(nowhere), *asked])
    stopwatch = Stopwatch(nowhere)
    status = sample_cards(arguments, stopwatch, output, binding_file(sys.path))
    return status or output.write(to_json({"cost_us": stopwatch.cost_us()}))


if __name__ == "__main__":
    # As the collector's own end: the driver's library is still loaded.
    os._exit(main(sys.argv[1], sys.argv[2:]))
