"""A question of a group that hangs costs its card what comes after it: what was read before stands, and the other cards are complete.

The card is asked last, as the agent asks one that hung before; tests/sampler/test_one_of_many.py has the sample before that, and the base
values. The collector marks each call before it makes it, so a test knows that it hangs, and ends it then: nobody waits for a time to pass.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from guest_api.guest_api_pb2 import GpuDevice
from guest_contract.card_fields import BASE, GROUPS, LISTS, QUESTIONS, QUESTIONS_OF, ROWS
from guest_service.collector.command import collector_command
from guest_service.sampler.parts import Asking, Told, read_parts
from tests.collector.group_answers import CALLS, LIST_CALLS, QUESTIONS_BY_CALLS
from tests.nvml_library.fixture import ScriptedNvml

CARDS, HUNG = 8, 3
MIG_ON = "nvmlDeviceGetMigMode * * set value=1\n"
WHY = "did not answer within 2 s"
# The order in which a card's questions are asked.
ORDER = [question for group in GROUPS for question in (*QUESTIONS_OF.get(group, ()), *([LISTS[group]] if group in LISTS else []))]
GROUP_OF = {question: group for group, questions in QUESTIONS_OF.items() for question in questions} | {
    question: group for group, question in LISTS.items()
}
# What the base values ask for already; a group is told what came then.
OF_BASE = ("memory_reserved", "power_limit")
# The first question that calls a function, by function; of an older one that stands in only where the newer is not there, none.
HANGS: dict[str, str] = {}
# The list of processes is the second question of the same function.
LATER = [("nvmlDeviceGetComputeRunningProcesses_v3", "2", "process_list")]
for question in ORDER:
    for function in (LIST_CALLS[question] if question in LIST_CALLS else CALLS[question][:1]) if question not in OF_BASE else ():
        HANGS.setdefault(function, question)


def told_until(library: ScriptedNvml, mark: str) -> Told:
    """What a collector told until it said that it makes this call; it is ended then."""
    reading, writing = os.pipe()
    command = collector_command(nvml_library=library.path, groups=GROUPS)
    command += ["--ask-last", str(HUNG), "--parts-to", str(writing)]
    told = b""
    with subprocess.Popen(command, pass_fds=[writing], stdout=subprocess.DEVNULL) as collector:
        os.close(writing)
        with open(reading, "rb", buffering=0) as parts:
            while f"?{mark}\n".encode() not in told:
                more = parts.read(65536)
                assert more, f"it ended without {mark}"
                told += more
            collector.send_signal(signal.SIGKILL)
            told += parts.read()
    return read_parts(told, cut_short=True)


def unset(card: GpuDevice) -> set[str]:
    # mypy cannot know that these are optional fields.
    return {row.name for row in ROWS if not card.HasField(row.name)}  # type: ignore[arg-type]


def test_every_function_that_a_group_asks_has_a_case_here() -> None:
    older = {function for calls in QUESTIONS_BY_CALLS for function in calls[1:]}
    of_base = {function for question in OF_BASE for function in CALLS[question]}
    asked = {function for calls in (*CALLS.values(), *LIST_CALLS.values()) for function in calls}
    assert set(HANGS) == asked - older - of_base


@pytest.mark.parametrize(("function", "calls", "question"), [*((call, "*", first) for call, first in HANGS.items()), *LATER])
def test_a_question_that_hangs_on_one_card_of_eight_costs_that_card_what_comes_after_it(
    scripted_nvml: Callable[..., ScriptedNvml], function: str, calls: str, question: str
) -> None:
    library = scripted_nvml(f"cards {CARDS}\n{MIG_ON}{function} {HUNG} {calls} hang")
    told = told_until(library, f"{HUNG} {question} {function}")
    assert told.asking == Asking(HUNG, question, function)
    told.explain(WHY)
    reply = told.reply()
    hung = reply.gpus[HUNG]
    for card in reply.gpus:
        if card is not hung:
            assert (list(card.errors), unset(card)) == ([], set())
            assert (len(card.mig_instances), len(card.process_list)) == (2, 2)
    after = ORDER[ORDER.index(question) :]
    assert unset(hung) == {name for each in after for name in QUESTIONS.get(each, ())}
    # Each group that was begun or not reached says so, and the question says why; a group that is a list alone has no values that lack.
    groups = {GROUP_OF[each] for each in after if each in QUESTIONS}
    late = [f"{group}: not asked, because {function} of card {HUNG} did not answer" for group in GROUPS if group in groups]
    assert sorted(hung.errors) == sorted([*late, f"{question}: {WHY}"])
    assert not [name for question in QUESTIONS_OF[BASE] for name in QUESTIONS[question] if name in unset(hung)]
