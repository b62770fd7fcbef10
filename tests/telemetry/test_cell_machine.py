"""The cell as a state machine in virtual time: whatever callers, driver and clock do, the promises to the driver and to callers hold."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from guest_api import guest_api_pb2
from guest_service.telemetry.gate import DRIVER_NOT_LOADED
from guest_service.telemetry.gpu_telemetry import ANSWER_MARGIN_SECONDS, WAIT_SLACK_SECONDS
from tests.telemetry.rack import BACKOFF, TIMEOUT, TTL, Rig
from tests.telemetry.virtual_time import VirtualLoop

# Rounding of the clock, and the shortest timer that the cell sets.
TICK = 0.005
ROUNDING = 1e-6

CALLERS = st.sampled_from(["prometheus", "proxy", "person"])
SECONDS = st.floats(0.0, 60.0)


@dataclass
class Waiting:
    """A caller of gpu_info that may still wait."""

    task: asyncio.Task[guest_api_pb2.GpuInfoResponse]
    asked_at: float
    bound: float
    max_age: float | None


class CellMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.loop.set_exception_handler(self._on_loop_error)
        self.errors: list[dict[str, object]] = []
        self.requests = 0
        self.checked = 0
        self.answered: list[float] = []
        self.waiting: list[Waiting] = []
        # After how many samples the driver was seen to be gone.
        self.forgot: set[int] = set()
        self.rig = self.loop.run_until_complete(self._begin())

    def _on_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self.errors.append(context)

    async def _begin(self) -> Rig:
        rig = Rig(clock=self.loop.boottime)
        await rig.telemetry.start()
        return rig

    # What happens.

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.loop.wait(seconds)

    @rule(seconds=st.floats(0.0, 1e5))
    def the_machine_sleeps(self, seconds: float) -> None:
        self.loop.suspend(seconds)

    @rule(duration=st.sampled_from([0.0, 0.1, 2.0, 8.0, 3600.0]), reason=st.sampled_from(["", "", "GPU is lost"]))
    def the_next_samples_go(self, duration: float, reason: str) -> None:
        self.rig.sampler.duration, self.rig.sampler.reason = duration, reason

    @rule(loaded=st.booleans())
    def the_driver_comes_or_goes(self, loaded: bool) -> None:
        self.rig.machine.driver_loaded = loaded

    @rule(caller=CALLERS)
    def somebody_reads_the_page(self, caller: str) -> None:
        self.ask_last(caller)

    @rule(caller=CALLERS, period=st.floats(1.0, 60.0), times=st.integers(1, 8))
    def a_scraper_comes_at_a_beat(self, caller: str, period: float, times: int) -> None:
        for _ in range(times):
            self.loop.wait(period)
            self.ask_last(caller)

    @rule(
        caller=CALLERS,
        max_age=st.none() | st.floats(0.0, 60.0),
        timeout=st.none() | st.floats(0.0, 30.0),
        together=st.integers(1, 3),
    )
    def calls_come_in(self, caller: str, max_age: float | None, timeout: float | None, together: int) -> None:
        bound = TIMEOUT + WAIT_SLACK_SECONDS
        if timeout is not None:
            bound = min(bound, max(0.0, timeout - min(ANSWER_MARGIN_SECONDS, timeout / 10)))
        for _ in range(together):
            self._count_request()
            call = self.rig.telemetry.gpu_info(caller, max_age_seconds=max_age, timeout_seconds=timeout)
            self.waiting.append(Waiting(self.loop.create_task(call), self.loop.time(), bound, max_age))
        self.loop.wait(0)

    @precondition(lambda self: any(not waiting.task.done() for waiting in self.waiting))
    @rule(data=st.data())
    def a_caller_gives_up(self, data: st.DataObject) -> None:
        still = [waiting for waiting in self.waiting if not waiting.task.done()]
        gone = data.draw(st.sampled_from(still))
        running = self.rig.sampler.running
        gone.task.cancel()
        self.loop.wait(0)
        assert gone.task.cancelled()
        assert self.rig.sampler.running == running
        self.waiting.remove(gone)

    @rule()
    def everybody_is_silent_for_a_day(self) -> None:
        self.loop.wait(2 * 86400)
        before = self.rig.samples
        self.loop.wait(86400)
        assert self.rig.samples == before

    @rule()
    def a_stranger_finds_the_cell_refreshed_behind_the_answer_if_that_is_allowed(self) -> None:
        allowed = self._allowed_at() <= self.rig.clock() and not self.rig.sampler.running
        before = self.rig.samples
        reply = self.ask_last(f"stranger {self.requests}")
        self.loop.wait(0)
        if reply.error != DRIVER_NOT_LOADED:
            assert (self.rig.samples == before + 1) == allowed

    # What must hold.

    @invariant()
    def samples_keep_their_distance(self) -> None:
        starts, ends = self.rig.sampler.started, self.rig.sampler.ended
        for number, ((end, failed), start) in enumerate(zip(ends, starts[1:], strict=False), 1):
            assert start - end >= (BACKOFF if failed and number not in self.forgot else TTL) - ROUNDING

    @invariant()
    def samples_outnumber_requests_by_one_at_most(self) -> None:
        assert self.rig.samples <= self.requests + 1

    @invariant()
    def every_caller_is_answered_within_its_bound(self) -> None:
        for waiting in self.waiting:
            assert waiting.task.done() or self.loop.time() <= waiting.asked_at + waiting.bound + TICK

    @invariant()
    def no_answer_breaks_the_contract(self) -> None:
        for waiting in [waiting for waiting in self.waiting if waiting.task.done()]:
            self.waiting.remove(waiting)
            self._check(waiting.task.result())

    @invariant()
    def nothing_is_wrong_in_the_loop(self) -> None:
        assert self.errors == []

    def teardown(self) -> None:
        self.loop.run_until_complete(self.rig.telemetry.close())
        self.loop.wait(TIMEOUT)
        assert all(waiting.task.done() for waiting in self.waiting)
        assert not self.rig.sampler.running
        assert self.errors == []
        self.loop.close()

    def ask_last(self, caller: str) -> guest_api_pb2.GpuInfoResponse:
        self._count_request()

        async def ask() -> guest_api_pb2.GpuInfoResponse:
            return self.rig.telemetry.last(caller)

        before = self.loop.time()
        reply = self.loop.run_until_complete(ask())
        assert self.loop.time() == before
        self._check(reply)
        if reply.HasField("sample_age_ms"):
            age_ms = (self.rig.clock() - self.rig.sampler.ended[-1][0]) * 1000
            assert abs(reply.sample_age_ms - age_ms) <= 1.001
        return reply

    def _count_request(self) -> None:
        if self.rig.machine.driver_loaded:
            self.requests += 1
        else:
            self.forgot.add(self.rig.samples)

    def _allowed_at(self) -> float:
        if not self.rig.sampler.ended:
            return 0.0
        end, failed = self.rig.sampler.ended[-1]
        return end + (BACKOFF if failed and len(self.rig.sampler.ended) not in self.forgot else TTL)

    def _check(self, reply: guest_api_pb2.GpuInfoResponse) -> None:
        """None is not possible with a card; unknown has a reason and nothing else but an age; a value has its age."""
        if reply.error:
            assert not reply.gpus
            assert not reply.HasField("cc_enabled")
        else:
            assert len(reply.gpus) == 1
            assert reply.HasField("sample_age_ms")


CellMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestCell = CellMachine.TestCase
