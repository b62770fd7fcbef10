"""The sampler with real child processes that behave and misbehave."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from guest_api import guest_api_pb2
from guest_service.sampler import OutcomeKind, Sampler
from tests.eventually import eventually, turns
from tests.sampler.children import SAMPLE, children_of, group_of, parts_of, prints, python, shell, state_of

# Long enough for a child to start on a busy machine, when the test wants the time to be up all the same.
SOON = 0.3


@pytest.fixture
async def samplers() -> AsyncIterator[Callable[..., Sampler]]:
    """Makes samplers with short bounds; closes them, and holds that no child process is left."""
    made: list[Sampler] = []
    before = set(children_of())

    def make(
        argv: list[str], *, timeout_seconds: float = 20.0, ending_seconds: float = 10.0, grace_seconds: float = 0.2
    ) -> Sampler:
        sampler = Sampler(
            argv,
            timeout_seconds=timeout_seconds,
            ending_seconds=ending_seconds,
            grace_seconds=grace_seconds,
            kill_patience_seconds=5.0,
        )
        made.append(sampler)
        return sampler

    yield make
    for sampler in made:
        await sampler.close()
    assert set(children_of()) <= before


async def written(path: Path) -> str:
    """What a child writes into a file to say how far it got; whole once the newline is there."""
    await eventually(lambda: path.exists() and path.read_text().endswith("\n"))
    return path.read_text().strip()


async def test_a_line_and_status_0_are_a_sample(samplers: Callable[..., Sampler]) -> None:
    outcome = await samplers(prints(parts_of(SAMPLE))).sample()
    assert outcome.kind is OutcomeKind.SAMPLE
    assert outcome.reply == SAMPLE
    assert not outcome.reply.HasField("sample_age_ms")
    assert 0 < outcome.took_seconds < 20


async def test_cc_questions_that_failed_are_counted_and_other_complaints_are_not(samplers: Callable[..., Sampler]) -> None:
    said = "cc_enabled: Unknown Error (999)", "cc_devtools: Success, but nothing was written (-1)", "nvmlShutdown: x cc_ready: y"
    complaints = "".join(f"guest-service gpu-info: {line}\n" for line in said).encode()
    outcome = await samplers(
        python(f"import sys; sys.stderr.buffer.write({complaints!r}); sys.stdout.write({parts_of(SAMPLE)!r})")
    ).sample()
    assert outcome.kind is OutcomeKind.SAMPLE
    assert outcome.failed_cc_queries == 2


async def test_a_line_that_says_why_nothing_is_known_is_a_failure_with_these_words(samplers: Callable[..., Sampler]) -> None:
    reply = guest_api_pb2.GpuInfoResponse(error="Driver/library version mismatch")
    outcome = await samplers(prints(parts_of(reply))).sample()
    assert outcome.kind is OutcomeKind.DRIVER_ERROR
    assert outcome.failed
    assert outcome.reply == reply


@pytest.mark.parametrize(
    ("argv", "kind", "reason"),
    [
        (shell("exit 3"), OutcomeKind.CRASH, "the GPU collector exited with status 3"),
        (shell("echo oops >&2; exit 1"), OutcomeKind.CRASH, "the GPU collector exited with status 1: oops"),
        (shell(f"echo '{parts_of(SAMPLE).strip()}'; exit 1"), OutcomeKind.CRASH, "exited with status 1"),
        (shell("kill -SEGV $$"), OutcomeKind.CRASH, "the GPU collector was ended by SIGSEGV"),
        (shell("kill -KILL $$"), OutcomeKind.CRASH, "was ended by SIGKILL"),
        (shell("kill -40 $$"), OutcomeKind.CRASH, "was ended by signal 40"),
        (shell(":"), OutcomeKind.UNREADABLE, "output is not a sample: nothing was told"),
        (prints("hello\n"), OutcomeKind.UNREADABLE, "not a sample: JSON is malformed"),
        (prints(parts_of(SAMPLE) * 2), OutcomeKind.UNREADABLE, "more came after the end"),
        (prints(parts_of(SAMPLE)[:-1]), OutcomeKind.UNREADABLE, "the end is missing"),
        (["/nowhere/collector"], OutcomeKind.NOT_STARTED, "cannot be started: No such file or directory"),
        (["/etc/passwd"], OutcomeKind.NOT_STARTED, "cannot be started: Permission denied"),
        (prints("x" * 200_000), OutcomeKind.NOT_STARTED, "cannot be started: Argument list too long"),
    ],
)
async def test_every_other_end_is_a_failure_with_its_reason(
    samplers: Callable[..., Sampler], argv: list[str], kind: OutcomeKind, reason: str
) -> None:
    outcome = await samplers(argv).sample()
    assert (outcome.kind, outcome.failed) == (kind, True)
    assert reason in outcome.reply.error
    assert "\n" not in outcome.reply.error
    assert outcome.reply == guest_api_pb2.GpuInfoResponse(error=outcome.reply.error)


@pytest.mark.parametrize("end", ["kill -SEGV $$", "trap '' TERM; sleep 30 & wait", "kill -STOP $$"])
async def test_a_driver_that_cannot_end_loses_no_sample(samplers: Callable[..., Sampler], end: str) -> None:
    sampler = samplers(shell(f"echo '{parts_of(SAMPLE).strip()}'; {end}"), ending_seconds=0.1)
    outcome = await sampler.sample()
    assert (outcome.kind, outcome.reply) == (OutcomeKind.SAMPLE, SAMPLE)
    assert outcome.took_seconds < 10


async def test_a_flood_on_stdout_is_cut_short_and_refused_without_being_kept(samplers: Callable[..., Sampler]) -> None:
    # 100 MB at once, and then forever: only the kill ends it.
    flood = python("import os\nwhile True: os.write(1, b'x' * 100_000_000)")
    outcome = await samplers(flood).sample()
    assert outcome.kind is OutcomeKind.UNREADABLE
    assert outcome.reply.error == "the GPU collector told more than 1048576 bytes"


async def test_a_flood_on_stderr_blocks_nobody_and_is_logged_in_part(
    samplers: Callable[..., Sampler], caplog: pytest.LogCaptureFixture
) -> None:
    noisy = python("import sys\nsys.stderr.write('noise\\n' * 1_000_000)\nsys.stdout.write(sys.argv[1])", parts_of(SAMPLE))
    with caplog.at_level(logging.WARNING):
        outcome = await samplers(noisy).sample()
    assert outcome.kind is OutcomeKind.SAMPLE
    assert 2 <= len(caplog.records) <= 21
    assert "more lines" in caplog.messages[-1]


async def test_the_same_complaint_on_stderr_is_logged_once_per_change(
    samplers: Callable[..., Sampler], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    words = tmp_path / "words"
    sampler = samplers(shell(f"cat {words} >&2; exit 1"))
    for text in ("a\n", "a\n", "b\n", "b\n", "a\n"):
        words.write_text(text)
        await sampler.sample()
    assert caplog.messages == ["collector: a", "collector: b", "collector: a"]


async def test_control_characters_of_a_dying_collector_do_not_reach_the_error(samplers: Callable[..., Sampler]) -> None:
    outcome = await samplers(shell(r"printf 'x\033[2J\377\r\n' >&2; exit 1")).sample()
    assert outcome.reply.error == "the GPU collector exited with status 1: x\\x1b[2J\ufffd"


async def test_the_child_has_null_as_stdin_its_own_session_and_no_descriptor_of_the_agent(
    samplers: Callable[..., Sampler],
) -> None:
    script = """
import os, sys
sys.stdin.read()
open_ = [d for d in os.listdir('/proc/self/fd') if int(d) > 2 and os.path.exists(f'/proc/self/fd/{d}')]
ok = os.readlink('/proc/self/fd/0') == '/dev/null' and os.getsid(0) == os.getpid() == os.getpgid(0)
sys.exit(f'{open_} {ok}') if open_ or not ok else sys.stdout.write(sys.argv[1])
"""
    inheritable = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inheritable, True)
    try:
        outcome = await samplers(python(script, parts_of(SAMPLE))).sample()
    finally:
        os.close(inheritable)
    assert (outcome.kind, outcome.reply.error) == (OutcomeKind.SAMPLE, "")


async def test_no_answer_in_time_is_told_at_once_and_the_process_is_ended_by_sigterm(
    samplers: Callable[..., Sampler], tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    # Says how it ended; without SIGTERM it stays forever.
    hangs = shell(f"trap 'echo terminated > {trace}; exit 0' TERM; while :; do sleep 0.01; done")
    outcome = await samplers(hangs, timeout_seconds=SOON, grace_seconds=20).sample()
    assert outcome.kind is OutcomeKind.TIMEOUT
    assert outcome.reply.error == (
        "the GPU driver did not answer within 0.3 s; the collector was told to end; it had asked nothing yet: this machine is very slow, "
        "or the process is stopped"
    )
    assert SOON <= outcome.took_seconds < SOON + 1
    assert await written(trace) == "terminated"


async def test_a_collector_that_ignores_sigterm_is_killed_after_the_grace_and_blocks_samples_until_it_is_gone(
    samplers: Callable[..., Sampler], tmp_path: Path
) -> None:
    trace = tmp_path / "pid"
    deaf = python(
        f"import os, signal\nsignal.signal(15, signal.SIG_IGN)\n"
        f"with open({str(trace)!r}, 'a') as f: f.write(f'{{os.getpid()}}\\n')\nwhile True: signal.pause()"
    )
    sampler = samplers(deaf, timeout_seconds=SOON, grace_seconds=1.0)
    outcome = await sampler.sample()
    assert outcome.kind is OutcomeKind.TIMEOUT
    pid = int(await written(trace))
    blocked = await sampler.sample()
    assert blocked.kind is OutcomeKind.BLOCKED
    assert blocked.reply.error == f"collector process {pid} is being ended; no new GPU sample until it is gone"
    assert trace.read_text() == f"{pid}\n"
    await eventually(lambda: state_of(pid) is None)
    await turns()
    assert (await sampler.sample()).kind is OutcomeKind.TIMEOUT
    assert len(trace.read_text().split()) == 2


async def test_a_stopped_collector_is_ended_too_and_never_joined_by_a_second(
    samplers: Callable[..., Sampler], tmp_path: Path
) -> None:
    trace = tmp_path / "pid"
    sampler = samplers(shell(f"echo $$ >> {trace}; kill -STOP $$; sleep 60"), timeout_seconds=SOON, grace_seconds=20.0)
    attempt = asyncio.create_task(sampler.sample())
    pid = int(await written(trace))
    await eventually(lambda: state_of(pid) == "T")
    assert (await sampler.sample()).kind is OutcomeKind.BLOCKED
    assert (await attempt).kind is OutcomeKind.TIMEOUT
    # SIGTERM alone would wait for SIGCONT; the grace is far longer than this test may take.
    await eventually(lambda: state_of(pid) is None)


async def test_a_process_that_not_even_sigkill_ends_is_named_and_blocks_until_it_goes(
    samplers: Callable[..., Sampler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Nothing but a broken driver makes a real process survive SIGKILL; here the signal gets lost on its way to the kernel.
    trace = tmp_path / "pid"
    sampler = Sampler(
        shell(f"trap '' TERM; echo $$ >> {trace}; while :; do sleep 0.05; done"),
        timeout_seconds=SOON,
        grace_seconds=0.05,
        kill_patience_seconds=0.05,
    )
    lost = asyncio.Event()
    real_killpg = os.killpg

    def losing(pgid: int, number: int) -> None:
        if number == signal.SIGKILL:
            lost.set()
        else:
            real_killpg(pgid, number)

    monkeypatch.setattr(os, "killpg", losing)
    assert (await sampler.sample()).kind is OutcomeKind.TIMEOUT
    pid = int(await written(trace))
    await lost.wait()
    await eventually(lambda: any("still there after SIGKILL" in message for message in caplog.messages))
    blocked = await sampler.sample()
    assert blocked.kind is OutcomeKind.BLOCKED
    assert blocked.reply.error == f"collector process {pid} is still there 0 s after SIGKILL; no new GPU sample until it is gone"
    monkeypatch.undo()
    real_killpg(pid, signal.SIGKILL)
    await eventually(lambda: state_of(pid) is None)
    await turns()
    assert (await sampler.sample()).kind is OutcomeKind.TIMEOUT
    await sampler.close()
    assert pid not in children_of()


async def test_closing_gives_up_on_a_process_that_does_not_die_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trace = tmp_path / "pid"
    sampler = Sampler(shell(f"echo $$ >> {trace}; exec sleep 60"), kill_patience_seconds=0.1)
    attempt = asyncio.create_task(sampler.sample())
    pid = int(await written(trace))
    monkeypatch.setattr(os, "killpg", lambda pgid, number: None)
    began = time.monotonic()
    await sampler.close()
    assert time.monotonic() - began < 3
    assert any("leaving it behind" in message for message in caplog.messages)
    assert (await attempt).failed
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


async def test_the_whole_group_goes_with_the_collector(samplers: Callable[..., Sampler], tmp_path: Path) -> None:
    trace = tmp_path / "pid"
    # The grandchild holds stdout open and would outlive the collector by a minute.
    outcome = await samplers(shell(f'sleep 60 & echo $$ > {trace}; printf %s "$1"', parts_of(SAMPLE))).sample()
    assert outcome.kind is OutcomeKind.SAMPLE
    group = int(trace.read_text())
    await eventually(lambda: list(group_of(group)) == [])


async def test_closing_ends_a_collector_that_hangs_and_answers_who_waits_for_it(tmp_path: Path) -> None:
    trace = tmp_path / "pid"
    sampler = Sampler(shell(f"trap '' TERM; echo $$ > {trace}; while :; do sleep 0.01; done"))
    attempt = asyncio.create_task(sampler.sample())
    pid = int(await written(trace))
    began = time.monotonic()
    await sampler.close()
    assert time.monotonic() - began < 3
    assert state_of(pid) is None
    assert (await attempt).failed
    assert (await sampler.sample()).reply.error == "the agent is stopping; no GPU sample is taken"


async def test_closing_lets_a_stopped_collector_go_on_so_that_sigterm_ends_it_and_not_sigkill(tmp_path: Path) -> None:
    trace = tmp_path / "pid"
    sampler = Sampler(shell(f"echo $$ > {trace}; kill -STOP $$; sleep 60"))
    attempt = asyncio.create_task(sampler.sample())
    pid = int(await written(trace))
    await eventually(lambda: state_of(pid) == "T")
    await sampler.close()
    assert state_of(pid) is None
    # A process that is still stopped ends by SIGKILL: of signals that wait, the kernel takes the lowest first.
    assert "SIGTERM" in (await attempt).reply.error


async def test_cancelling_a_sample_ends_its_process(samplers: Callable[..., Sampler], tmp_path: Path) -> None:
    trace = tmp_path / "pid"
    attempt = asyncio.create_task(samplers(shell(f"echo $$ > {trace}; exec sleep 60")).sample())
    pid = int(await written(trace))
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    await eventually(lambda: state_of(pid) is None)


async def test_without_a_pidfd_the_end_is_noticed_all_the_same(
    samplers: Callable[..., Sampler], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(pid: int, flags: int = 0) -> int:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", refused)
    sampler = samplers(prints(parts_of(SAMPLE)))
    assert [(await sampler.sample()).kind for _ in range(3)] == [OutcomeKind.SAMPLE] * 3
    hanging = samplers(shell("exec sleep 60"), timeout_seconds=SOON)
    assert (await hanging.sample()).kind is OutcomeKind.TIMEOUT


async def test_an_inherited_disregard_of_child_deaths_does_not_lose_the_sample(samplers: Callable[..., Sampler]) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert (await samplers(prints(parts_of(SAMPLE))).sample()).kind is OutcomeKind.SAMPLE
    finally:
        signal.signal(signal.SIGCHLD, before)
