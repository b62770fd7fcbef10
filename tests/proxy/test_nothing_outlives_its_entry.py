"""Two tenants read by every way there is while guests come, go, move, change hands and are replaced: nobody is shown a byte of a guest
outside its scope, or of a VM that is not the entry's.

Hypothesis chooses the order. The proxy, its pages, the guests and the readers are real; the interval of a watch is the test's to end.
Rejected: a list of cases (each of the known leaks was an order of steps that nobody had thought of).
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.eventually import eventually
from tests.proxy.tenants import IDS, TENANTS, VMS, Tenants, running_tenants

ids, vms, tenants = st.sampled_from(IDS), st.integers(0, VMS - 1), st.sampled_from(TENANTS)
# Some ten seconds together.
RUNS, STEPS = 25, 20


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp(prefix="gs"))
        self._runner = asyncio.Runner()
        self._ending = contextlib.AsyncExitStack()
        self.world: Tenants = self._runner.run(self._ending.enter_async_context(running_tenants(self._folder)))

    def teardown(self) -> None:
        self._runner.run(self._ending.aclose())
        self._runner.close()
        shutil.rmtree(self._folder)

    def step(self, do: Callable[..., object], *args: object, **kwargs: object) -> None:
        async def done() -> None:
            result = do(*args, **kwargs)
            if asyncio.iscoroutine(result):
                await result
            await self.world.settle()

        self._runner.run(done())
        assert not self.world.leaks, self.world.leaks

    @rule(guest_id=ids, number=vms, tenant=tenants, pinned=st.booleans())
    def register_or_update(self, guest_id: str, number: int, tenant: str, *, pinned: bool) -> None:
        if number not in {at for other, at in self.world.at.items() if other != guest_id}:
            self.step(self.world.put, guest_id, number, tenant, pinned=pinned)
            self.step(self.world.join)

    @precondition(lambda self: self.world.at)
    @rule(data=st.data(), tenant=tenants)
    def change_hands(self, data: st.DataObject, tenant: str) -> None:
        guest_id = data.draw(st.sampled_from(sorted(self.world.at)))
        self.step(self.world.put, guest_id, self.world.at[guest_id], tenant, pinned=bool(self.world.pins[guest_id]))
        self.step(self.world.join)

    @precondition(lambda self: self.world.at)
    @rule(data=st.data())
    def deregister(self, data: st.DataObject) -> None:
        self.step(self.world.remove, data.draw(st.sampled_from(sorted(self.world.at))))

    @rule(number=vms)
    def replace_the_vm(self, number: int) -> None:
        self.step(self.world.replace_vm, number)

    @rule(number=vms, large=st.booleans())
    def hold_answers(self, number: int, *, large: bool) -> None:
        self.world.vms[number].held.clear()
        self.world.vms[number].large = large

    @rule(number=vms)
    def let_answers_go(self, number: int) -> None:
        self.step(self.world.vms[number].held.set)

    @rule()
    def interval_ends(self) -> None:
        self.step(self.world.clock.tick)

    @rule(tenant=tenants, by_name=st.booleans(), kept=st.booleans())
    def watch(self, tenant: str, *, by_name: bool, kept: bool) -> None:
        self.step(self.world.stream, tenant, watch=True, by_name=by_name, kept=kept)

    @rule(tenant=tenants, by_name=st.booleans(), kept=st.booleans())
    def collect(self, tenant: str, *, by_name: bool, kept: bool) -> None:
        self.step(self.world.stream, tenant, watch=False, by_name=by_name, kept=kept)

    @rule(tenant=tenants, guest_id=ids, method=st.sampled_from(["GpuInfo", "SysInfo", "Info"]), kept=st.booleans())
    def ask(self, tenant: str, guest_id: str, method: str, *, kept: bool) -> None:
        self.step(self.world.ask, tenant, guest_id, method, kept=kept)

    @rule(tenant=tenants)
    def list_guests(self, tenant: str) -> None:
        self.step(self.world.list, tenant)

    @rule(guest_id=ids)
    def scrape(self, guest_id: str) -> None:
        self.step(self.world.scrape, guest_id)

    @rule()
    def page(self) -> None:
        self.step(self.world.page)

    @rule()
    def events(self) -> None:
        self.step(self.world.events)


def test_nobody_is_shown_a_byte_of_another_tenants_guest_or_of_a_vm_that_is_not_the_entrys() -> None:
    quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    # Not shrunk: that would take longer than a test may, and what was shown says enough.
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    run_state_machine_as_test(
        World,
        settings=settings(
            max_examples=RUNS, stateful_step_count=STEPS, deadline=None, suppress_health_check=quiet, phases=phases
        ),
    )


@pytest.fixture
async def world(sockets: Path) -> AsyncIterator[Tenants]:
    async with running_tenants(sockets) as running:
        yield running


async def settled(world: Tenants) -> None:
    """Until nobody waits for a guest any more."""
    async with asyncio.timeout(20):
        await world.settle()
        await eventually(lambda: not any(world.proxy.pool.upstream(guest_id).callers for guest_id in world.at))
        await world.settle()


async def asked(world: Tenants, number: int, method: str = "GpuInfo") -> None:
    await eventually(lambda: [stream for stream in world.vms[number].guest.requests if stream.path.endswith(method)])


@pytest.mark.parametrize("again", ["moved", "pinned", "registered anew"])
async def test_a_watcher_that_joins_within_the_interval_is_served_by_the_vm_that_has_the_entry_now(
    world: Tenants, again: str
) -> None:
    world.put("a", 0, "blue", pinned=False)
    world.stream("blue", watch=True, by_name=False)
    await settled(world)
    await world.replace_vm(0)
    world.right["a"] = {world.vms[0].secret}
    if again == "registered anew":
        world.remove("a")
    world.put("a", 1 if again == "moved" else 0, "red", pinned=again == "pinned")
    await world.settle()
    world.stream("red", watch=True, by_name=False)
    await settled(world)
    assert (world.leaks, world.shown["red"]) == ([], {world.vms[world.at["a"]].secret})


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("by", ["watch", "collect", "ask"])
async def test_an_answer_that_comes_after_the_guest_changed_hands_is_not_sent(world: Tenants, by: str, *, large: bool) -> None:
    vm = world.vms[0]
    vm.held.clear()
    vm.large = large
    world.put("a", 0, "blue", pinned=False)
    if by == "ask":
        world.ask("blue", "a", "GpuInfo")
    else:
        world.stream("blue", watch=by == "watch", by_name=True)
    await asked(world, 0)
    world.put("a", 0, "red", pinned=False)
    await world.settle()
    vm.held.set()
    await settled(world)
    assert (world.leaks, world.shown["blue"]) == ([], set())
