"""How a sample leaves the collector: for the agent as parts, each as soon as it is known; for a person as one line in the end.

A call of the driver may hang or crash, and what was read before it must not be lost with it. So the agent's collector writes, a line each:

    ?3 memory nvmlDeviceGetMemoryInfo_v2     before a call: the card ("-" for the machine), the question and NVML's function
    {"cards":8}                              the number of cards
    {"machine":{"cc_ready":true,…}}          what holds for all of them
    {"card":3,"values":{…},"errors":[…]}     what a question about a card came to; without errors where there are none
    {"opened":true}                          every card was opened: what is slow in a driver's start is over
    {"error":"…"}                            why nothing is known, instead of all that
    {"end":true}                             nothing more comes

The parts of an answer are written together with the mark of the next call: one write for each call, 1 µs. A mark that is the last thing
written holds for the next call of the same function too: a question that asks link by link writes it once. Rejected: a thread that watches
for a call that takes long (it says nothing of a crash, and costs a thread for each sample).
"""

import posix

from guest_service.collector.line import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Part = dict[str, Any]  # Any: a JSON tree

MACHINE = "-"


class Parts:
    """Writes each part to the descriptor `fd`; who reads there is the agent."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._place = f"{MACHINE} start"
        self._unwritten = ""
        self._mark = ""

    def at(self, card: int | None, question: str) -> None:
        """What is asked from now on: one question, about one card or the machine."""
        self._place = f"{MACHINE if card is None else card} {question}"

    def calls(self, function: str) -> None:
        """A function of the driver is called next."""
        mark = f"?{self._place} {function}\n"
        if self._unwritten or mark != self._mark:
            self._mark = mark
            self._write(mark)

    def add(self, part: "Part") -> None:
        """One part; it is written at the latest before the next call."""
        self._unwritten += f"{to_json(part)}\n"

    def end(self) -> int:
        """Nothing more comes; returns the exit status."""
        self.add({"end": True})
        self._write("")
        return 0

    def _write(self, text: str) -> None:
        """An agent that is gone reads nothing; what it started then ends by itself (parent.py)."""
        left, self._unwritten = f"{self._unwritten}{text}".encode("ascii"), ""
        try:
            while left:
                left = left[posix.write(self._fd, left) :]
        except BrokenPipeError:
            return


class Whole:
    """The same parts put together; `tree` is the contract's GpuInfoResponse, with every key from the beginning that is asked for."""

    def __init__(self, groups: "Sequence[str]" = ()) -> None:
        self._groups = groups
        self.tree: Part = {
            "gpus": [], "error": "", "cc_ready": None, "cc_enabled": None, "cc_devtools": None, "sample_age_ms": None,
            "driver_version": None, "cuda_driver_version": None, "nvml_version": None, "cc_environment": None, "cc_multi_gpu_mode": None,
            "groups": [],
        }  # fmt: skip

    def at(self, card: int | None, question: str) -> None:
        """Nobody reads where a person's sample hangs."""

    def calls(self, function: str) -> None:
        """As above."""

    def add(self, part: "Part") -> None:
        """Put one part into its place."""
        if "cards" in part:
            from guest_contract.card_fields import BASE, LISTS, ROWS  # noqa: PLC0415 (loaded while NVML started)

            unset = dict.fromkeys(row.name for row in ROWS if row.group == BASE or row.group in self._groups)
            lists = [LISTS[group] for group in self._groups if group in LISTS]
            self.tree["gpus"] = [
                {"index": index, "uuid": "", "pci_bus_id": "", **unset, **{name: [] for name in lists}, "errors": []}
                for index in range(part["cards"])
            ]
        elif "card" in part:
            card = self.tree["gpus"][part["card"]]
            card.update(part["values"])
            card["errors"] += part.get("errors", ())
        elif "error" in part:
            self.tree["error"] = part["error"]
        else:
            self.tree.update(part.get("machine", {}))
