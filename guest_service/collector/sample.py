"""Takes one sample: asks a driver (NVML or a simulated one) for every value of the contract, card by card.

Per value: any failure leaves it None with one entry in the card's errors. Per card: no handle, no further question. Only what makes
everything unknown (no library, no init, no count) becomes `error`. It reads and composes; which questions there are, which fields answer
them and which numbers are possible is written in guest_contract.card_fields.
"""

from __future__ import annotations

from guest_contract.card_fields import FIELDS, POWER_LIMIT_MW, QUESTIONS, judge
from guest_service.collector.failure import (
    ERROR_LIMIT_CHARACTERS,
    FUNCTION_NOT_FOUND,
    NOT_SUPPORTED,
    NvmlFailure,
    SampleFailure,
    bounded,
    flag,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol, TypeVar

    T = TypeVar("T")
    Value = dict[str, Any]  # Any: a tree for JSON; the shape is the contract's GpuInfoResponse

    class Driver(Protocol):
        """What a sample asks; start raises SampleFailure, everything else NvmlFailure. A handle is opaque."""

        def start(self) -> None: ...  # noqa: D102 (nvml.Nvml documents each of these)
        def device_count(self) -> int: ...  # noqa: D102
        def device(self, index: int) -> Any: ...  # noqa: D102
        def uuid(self, device: Any) -> str: ...  # noqa: D102
        def pci_bus_id(self, device: Any) -> str: ...  # noqa: D102
        def ask(self, question: str, device: Any) -> tuple[Any, ...]: ...  # noqa: D102
        def power_limit(self, device: Any) -> int: ...  # noqa: D102
        def cc_settings(self) -> tuple[int, int, int]: ...  # noqa: D102
        def cc_ready(self) -> bool: ...  # noqa: D102


# More cards than any machine has; a driver that reports more is not believed.
CARDS_LIMIT = 1024


def failed(reason: str) -> Value:
    """The sample of which nothing is known."""
    cc = {"cc_ready": None, "cc_enabled": None, "cc_devtools": None}
    return {"gpus": [], "error": reason, **cc, "sample_age_ms": None}


def take_sample(driver: Driver, complain: Callable[[str], object]) -> Value:
    """One sample in the contract's shape, always; what has no place in it goes to `complain`, a line each."""
    try:
        driver.start()
        cards = [_card(driver, index) for index in range(_count(driver))]
    except SampleFailure as failure:
        return failed(bounded(str(failure), ERROR_LIMIT_CHARACTERS))
    sample = failed("")
    sample["gpus"] = cards
    if cards:  # without a card the answer is "none", and none is all there is to say
        sample["cc_enabled"], sample["cc_devtools"] = _cc_modes(driver, complain)
        sample["cc_ready"] = _system_wide("cc_ready", driver.cc_ready, complain)
    return sample


def _count(driver: Driver) -> int:
    try:
        count = driver.device_count()
    except NvmlFailure as failure:
        raise SampleFailure(f"NVML cannot count the GPUs: {failure}") from failure
    if count > CARDS_LIMIT:
        raise SampleFailure(f"NVML counts {count} GPUs, more than {CARDS_LIMIT}: not believed")
    return count


def _cc_modes(driver: Driver, complain: Callable[[str], object]) -> tuple[bool | None, bool | None]:
    """Whether confidential computing is on, and whether its DevTools mode is: one question, and one complaint when it fails."""
    settings = _system_wide("cc_enabled", driver.cc_settings, complain)
    if settings is None:
        return None, None
    _, feature, devtools = settings
    enabled = _system_wide("cc_enabled", lambda: flag(feature), complain)
    return enabled, None if enabled is None else _system_wide("cc_devtools", lambda: flag(devtools), complain)


def _system_wide(name: str, ask: Callable[[], T], complain: Callable[[str], object]) -> T | None:
    """The answer, or None for unknown; a driver without this query is no news, any other failure is a line."""
    try:
        return ask()
    except NvmlFailure as failure:
        if failure.code not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
            complain(f"{name}: {failure}")
        return None


def _card(driver: Driver, index: int) -> Value:
    card: Value = {"index": index, "uuid": "", "pci_bus_id": "", **dict.fromkeys(FIELDS)}
    entries = Entries()
    device = entries.ask("device", lambda: driver.device(index))
    if device is not None:
        card["uuid"] = entries.text("uuid", lambda: driver.uuid(device))
        card["pci_bus_id"] = entries.text("pci_bus_id", lambda: driver.pci_bus_id(device))
        for question in QUESTIONS:
            _read(driver, device, question, card, entries)
    card["errors"] = entries.lines
    return card


def _read(driver: Driver, device: Any, question: str, card: Value, entries: Entries) -> None:
    """Ask one question and put what stands of its answer into the card."""
    answer = entries.ask(question, lambda: driver.ask(question, device))
    if answer is None:
        return
    fields = QUESTIONS[question]
    given: Value = dict(zip(fields, answer, strict=True))
    if question == "power":
        given["power_limit_mw"] = _limit(driver, device)
    stands, reasons = judge(given)
    card.update((field, stands[field]) for field in fields)
    entries.add(question, reasons.get(question, ""))


def _limit(driver: Driver, device: Any) -> int | None:
    """The enforced power limit if it is one, or None: it only sharpens the judgement and has no place in the contract."""
    try:
        limit = driver.power_limit(device)
    except NvmlFailure:
        return None
    return limit if 0 < limit <= POWER_LIMIT_MW else None


class Entries:
    """The errors of one card: one line for each value that is unknown, `<field>: <reason>`."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, field: str, reason: str) -> None:
        """Add a line unless `reason` is empty."""
        if reason:
            self.lines.append(bounded(f"{field}: {reason}"))

    def ask(self, field: str, question: Callable[[], T]) -> T | None:
        """The answer, or None with a line."""
        try:
            return question()
        except NvmlFailure as failure:
            self.add(field, str(failure))
            return None

    def text(self, field: str, question: Callable[[], str]) -> str:
        """The answer, which may not be empty; or "" with a line."""
        answer = self.ask(field, question)
        if answer == "":
            self.add(field, "the driver returned an empty text")
        return answer or ""
