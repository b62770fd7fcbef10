"""The rack of sick cards shows each verdict, as far as a card's values tell, through the collector and the rules as they are."""

from __future__ import annotations

import asyncio

from guest_api.guest_api_pb2 import GpuInfoResponse
from guest_contract.health import Level, judge_card
from guest_contract.health_rules import RULES
from guest_service.collector.command import collector_command
from guest_service.sampler import Sampler

# Nothing that a card's values say: they need the kernel's log, or a card older than Ampere.
NOT_IN_THE_RACK = {"xid_reboot", "xid_reset", "xid_attention", "retired_pages_pending"}


def test_the_sick_rack_has_a_card_for_each_verdict_and_each_reason() -> None:
    command = collector_command(simulate="sick-h200x8", groups=("health",))

    async def sampled() -> GpuInfoResponse:
        sampler = Sampler(command)
        try:
            return (await sampler.sample()).reply
        finally:
            await sampler.close()

    reply = asyncio.run(sampled())
    verdicts = [judge_card(card, reply) for card in reply.gpus]
    assert [verdict.level for verdict in verdicts] == [
        Level.OK, Level.FAILED, Level.FAILED, Level.FAILED, Level.DEGRADED, Level.DEGRADED, Level.DEGRADED, Level.UNKNOWN
    ]  # fmt: skip
    reasons = {reason.code for verdict in verdicts for reason in verdict.reasons}
    assert reasons == {rule.code for rule in RULES} - NOT_IN_THE_RACK | {"unread"}
