"""One card that hangs, crashes or is slow costs only itself: the real collector on a scripted driver, sampled as the agent samples it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from guest_api import guest_api_pb2
from guest_service.collector.command import collector_command
from guest_service.sampler import Outcome, OutcomeKind, Sampler
from tests.eventually import eventually
from tests.nvml_library.fixture import ScriptedNvml
from tests.sampler.children import children_of

# Made here: it looks for the binding's file, which the event loop of a test may not.
COMMAND = collector_command()
Make = Callable[..., ScriptedNvml]
# Enough for a collector to ask eight cards on a busy machine; what hangs waits for so long.
TIMEOUT = 2.0
BASE = ("utilization", "memory", "temperature", "power")
# The first function of each question about a card, in the order in which they are asked.
CALLS = {
    "device": "nvmlDeviceGetHandleByIndex_v2",
    "uuid": "nvmlDeviceGetUUID",
    "pci_bus_id": "nvmlDeviceGetPciInfo_v3",
    "utilization": "nvmlDeviceGetUtilizationRates",
    "memory": "nvmlDeviceGetMemoryInfo_v2",
    "temperature": "nvmlDeviceGetTemperature",
    "power": "nvmlDeviceGetPowerUsage",
}


@pytest.fixture
async def sampler_of() -> AsyncIterator[Callable[..., Sampler]]:
    """Makes samplers of a library; closes them, and holds that no child process is left."""
    made: list[Sampler] = []
    before = set(children_of())

    def make(library: ScriptedNvml, *, timeout_seconds: float = TIMEOUT, first_timeout_seconds: float = 0.0) -> Sampler:
        command = [*COMMAND, "--nvml-library", str(library.path)]
        made.append(Sampler(command, timeout_seconds=timeout_seconds, first_timeout_seconds=first_timeout_seconds))
        return made[-1]

    yield make
    for sampler in made:
        await sampler.close()
    assert set(children_of()) <= before


async def take(sampler: Sampler) -> Outcome:
    """The next sample that is not refused because the last one's process is still being ended."""

    async def not_refused() -> Outcome | None:
        outcome = await sampler.sample()
        return None if outcome.kind is OutcomeKind.BLOCKED else outcome

    return await eventually(not_refused)


def complete(card: guest_api_pb2.GpuDevice) -> bool:
    return bool(card.uuid) and card.HasField("power_usage_mw") and not card.errors


@pytest.mark.parametrize("question", CALLS)
async def test_a_card_that_hangs_is_named_and_from_the_next_sample_on_the_others_are_complete(
    scripted_nvml: Make, sampler_of: Callable[..., Sampler], caplog: pytest.LogCaptureFixture, question: str
) -> None:
    sampler = sampler_of(scripted_nvml(f"cards 8\n{CALLS[question]} 3 * hang"))
    first = await take(sampler)
    assert first.kind is OutcomeKind.PARTIAL
    reason = f"{question}: {CALLS[question]} did not answer within 2 s"
    assert any(entry.startswith(reason) for entry in first.reply.gpus[3].errors)
    assert f"{CALLS[question]} of card 3 did not answer within 2 s" in caplog.text
    for card in first.reply.gpus:
        assert complete(card) or all(any(entry.startswith(f"{name}:") for entry in card.errors) for name in unset_questions(card))
    second = await take(sampler)
    assert [complete(card) for card in second.reply.gpus] == [card.index != 3 for card in second.reply.gpus]
    assert any(entry.startswith(reason) for entry in second.reply.gpus[3].errors)
    assert (second.reply.cc_enabled, second.reply.cc_ready) == (True, True)
    # How long reading the others took is up to the machine (1.4 s of the 2 s were seen); then nothing came until the bound.
    assert second.read_seconds_ago > TIMEOUT / 10


def unset_questions(card: guest_api_pb2.GpuDevice) -> list[str]:
    fields = dict(zip(BASE, ("utilization_gpu", "memory_total_bytes", "temperature_c", "power_usage_mw"), strict=True))
    # mypy cannot know that these are optional fields.
    return [name for name, field in fields.items() if not card.HasField(field)]  # type: ignore[arg-type]


async def test_what_was_read_of_a_card_before_it_hung_is_kept(scripted_nvml: Make, sampler_of: Callable[..., Sampler]) -> None:
    outcome = await take(sampler_of(scripted_nvml("cards 8\nnvmlDeviceGetMemoryInfo_v2 3 * hang")))
    card = outcome.reply.gpus[3]
    assert (card.uuid, card.utilization_gpu) == ("GPU-00000000-0000-4000-8000-000000000003", 40)
    not_asked = "not asked, because nvmlDeviceGetMemoryInfo_v2 of card 3 did not answer"
    assert list(card.errors) == [
        "memory: nvmlDeviceGetMemoryInfo_v2 did not answer within 2 s",
        f"temperature: {not_asked}",
        f"power: {not_asked}",
    ]
    left = outcome.reply.gpus[7]
    assert left.uuid
    assert list(left.errors) == [f"{question}: {not_asked}" for question in BASE]


async def test_cards_that_answer_again_are_no_longer_asked_last(scripted_nvml: Make, sampler_of: Callable[..., Sampler]) -> None:
    library = scripted_nvml("cards 3\nnvmlDeviceGetTemperature 0 1-2 hang\nnvmlDeviceGetTemperature 2 3 hang")
    sampler = sampler_of(library)
    assert [complete(card) for card in (await take(sampler)).reply.gpus] == [False, False, False]
    assert [complete(card) for card in (await take(sampler)).reply.gpus] == [False, True, True]
    assert (await take(sampler)).kind is OutcomeKind.SAMPLE
    # Were card 0 still asked last, it would not be reached now.
    assert [complete(card) for card in (await take(sampler)).reply.gpus] == [True, True, False]


async def test_two_cards_that_hang_take_turns_at_being_asked_last_and_the_others_are_complete(
    scripted_nvml: Make, sampler_of: Callable[..., Sampler]
) -> None:
    library = scripted_nvml("cards 4\nnvmlDeviceGetTemperature 1 * hang\nnvmlDeviceGetTemperature 2 * hang")
    sampler = sampler_of(library)
    for _ in range(2):
        await take(sampler)
    for _ in range(2):
        assert [complete(card) for card in (await take(sampler)).reply.gpus] == [True, False, False, True]
    calls = [await asyncio.to_thread(library.calls, "nvmlDeviceGetTemperature", card) for card in (1, 2)]
    assert calls == [2, 2]


async def test_a_machine_wide_call_that_hangs_costs_the_cards_nothing_from_the_next_sample_on(
    scripted_nvml: Make, sampler_of: Callable[..., Sampler]
) -> None:
    sampler = sampler_of(scripted_nvml("cards 2\nnvmlSystemGetConfComputeGpusReadyState - * hang"))
    first = await take(sampler)
    assert first.kind is OutcomeKind.TIMEOUT
    assert "(nvmlSystemGetConfComputeGpusReadyState)" in first.reply.error
    second = await take(sampler)
    assert all(map(complete, second.reply.gpus))
    assert second.reply.cc_enabled
    assert not second.reply.HasField("cc_ready")


async def test_a_call_that_ends_the_collector_costs_its_card_only(
    scripted_nvml: Make, sampler_of: Callable[..., Sampler]
) -> None:
    sampler = sampler_of(scripted_nvml("cards 8\nnvmlDeviceGetMemoryInfo_v2 3 * abort"))
    first = await take(sampler)
    reason = "memory: the GPU collector was ended by SIGABRT in nvmlDeviceGetMemoryInfo_v2"
    assert (first.kind, first.reply.gpus[3].errors[0]) == (OutcomeKind.PARTIAL, reason)
    second = await take(sampler)
    assert [complete(card) for card in second.reply.gpus] == [card.index != 3 for card in second.reply.gpus]


async def test_a_driver_that_hangs_in_its_start_is_named_with_what_helps(
    scripted_nvml: Make, sampler_of: Callable[..., Sampler]
) -> None:
    outcome = await take(sampler_of(scripted_nvml("nvmlInit_v2 - * hang"), timeout_seconds=0.5))
    assert outcome.kind is OutcomeKind.TIMEOUT
    for said in ("(nvmlInit_v2)", "persistence mode", "gpu.sample_timeout_seconds", "gpu.first_sample_timeout_seconds"):
        assert said in outcome.reply.error


@pytest.mark.parametrize("slow", ["nvmlInit_v2 -", "nvmlDeviceGetHandleByIndex_v2 0"])
async def test_the_first_sample_may_take_as_long_as_a_drivers_start_and_later_ones_may_not(
    scripted_nvml: Make, sampler_of: Callable[..., Sampler], slow: str
) -> None:
    sampler = sampler_of(scripted_nvml(f"cards 2\n{slow} * sleep 1500"), timeout_seconds=1.0, first_timeout_seconds=60.0)
    assert (await take(sampler)).kind is OutcomeKind.SAMPLE
    assert (await take(sampler)).kind is OutcomeKind.TIMEOUT
    sampler.expect_start()
    assert (await take(sampler)).kind is OutcomeKind.SAMPLE


async def test_a_card_that_hangs_in_the_first_sample_is_not_waited_for_as_long_as_a_drivers_start(
    scripted_nvml: Make, sampler_of: Callable[..., Sampler]
) -> None:
    library = scripted_nvml("cards 2\nnvmlDeviceGetMemoryInfo_v2 1 * hang")
    outcome = await take(sampler_of(library, timeout_seconds=1.0, first_timeout_seconds=3600.0))
    assert (outcome.kind, complete(outcome.reply.gpus[0])) == (OutcomeKind.PARTIAL, True)


async def test_what_a_preloaded_library_prints_is_logged_and_costs_no_sample(
    scripted_nvml: Make,
    sampler_of: Callable[..., Sampler],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, library = tmp_path / "loud.c", tmp_path / "loud.so"
    source.write_text(
        '#include <unistd.h>\n__attribute__((constructor)) static void loud(void) { if (write(1, "profiler 1.0\\n", 13)) {} }\n'
    )
    await asyncio.to_thread(compiled, source, library)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    outcome = await take(sampler_of(scripted_nvml("cards 2")))
    assert (outcome.kind, len(outcome.reply.gpus)) == (OutcomeKind.SAMPLE, 2)
    assert "collector: profiler 1.0" in caplog.messages


def compiled(source: Path, library: Path) -> None:
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
