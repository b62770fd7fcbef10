"""Verdicts: one case for each rule, what is no trouble, and that more trouble never makes a verdict better."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_api.guest_api_pb2 import GpuDevice, GpuInfoResponse, XidCount
from guest_contract.health import Level, judge_card, judge_cards, judge_guest
from guest_contract.health_rules import RULES, XID_COUNTS_MS, Rule
from tests.round_trip.messages import any_message

HOUR_MS = 60 * 60 * 1000


def healthy(index: int = 0) -> GpuDevice:
    return GpuDevice(
        index=index, uuid=f"GPU-{index}", pci_bus_id=f"00000000:0{index}:00.0", utilization_gpu=0, utilization_memory=0,
        memory_total_bytes=100, memory_used_bytes=0, memory_free_bytes=100, temperature_c=30, power_usage_mw=70000, ecc_enabled=True,
        ecc_uncorrected_volatile=0, row_remap_pending=False, row_remap_failed=False, clocks_event_reasons=1, pcie_generation=1,
        pcie_width=16, nvlinks_active=18, nvlinks_inactive=0, fabric_state=3, fabric_status=0, recovery_action=0, persistence_mode=True,
    )  # fmt: skip


def answer(*cards: GpuDevice) -> GpuInfoResponse:
    return GpuInfoResponse(
        gpus=cards or [healthy(0), healthy(1)], groups=["identity", "health"], cc_enabled=True, pci_devices=len(cards) or 2
    )


def xid(number: int, *, age_ms: int | None = 0, count: int = 1, nvswitch: bool = False) -> XidCount:
    return XidCount(xid=number, count=count, last_age_ms=age_ms, nvswitch=nvswitch)


def _lose(card: GpuDevice) -> None:
    kept = GpuDevice(index=card.index, uuid=card.uuid, pci_bus_id=card.pci_bus_id, errors=["utilization: GPU is lost"] * 4)
    card.CopyFrom(kept)


def _set(**values: object) -> Callable[[GpuDevice], None]:
    def change(card: GpuDevice) -> None:
        for name, value in values.items():
            setattr(card, name, value)

    return change


def _bits(bits: int) -> Callable[[GpuDevice], None]:
    def change(card: GpuDevice) -> None:
        card.clocks_event_reasons |= bits

    return change


def _xid(number: int) -> Callable[[GpuDevice], None]:
    return lambda card: card.xids.append(xid(number))


TROUBLE: dict[str, Callable[[GpuDevice], None]] = {
    "lost": _lose,
    "xid_reboot": _xid(79),
    "xid_reset": _xid(95),
    "row_remap_failed": _set(row_remap_failed=True),
    "recovery_action": _set(recovery_action=1),
    "fabric": _set(fabric_status=9),
    "row_remap_pending": _set(row_remap_pending=True),
    "retired_pages_pending": _set(retired_pages_pending=True),
    "ecc_uncorrected": _set(ecc_uncorrected_volatile=1),
    "xid_attention": _xid(94),
    "recovery_wish": _set(recovery_action=4),
    "power_brake": _bits(0x80),
    "hardware_slowdown": _bits(0x40),
    "pcie_width": _set(pcie_width=8),
    "nvlinks": _set(nvlinks_active=17, nvlinks_inactive=1),
    "persistence_mode": _set(persistence_mode=False),
}


def test_a_healthy_card_is_ok_and_so_is_its_guest() -> None:
    response = answer()
    assert [judge_card(card, response).level for card in response.gpus] == [Level.OK, Level.OK]
    assert judge_guest(response, cards_given=2).level is Level.OK


def test_each_rule_has_a_case_here() -> None:
    assert set(TROUBLE) == {rule.code for rule in RULES}
    assert len({rule.code for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=[rule.code for rule in RULES])
def test_what_a_rule_is_about_gives_its_verdict_and_no_other(rule: Rule) -> None:
    code, level = rule.code, rule.level
    response = answer()
    TROUBLE[code](response.gpus[0])
    verdict = judge_card(response.gpus[0], response)
    assert (verdict.level, [reason.code for reason in verdict.reasons]) == (level, [code])
    assert verdict.reasons[0].words
    assert verdict.reasons[0].action
    assert judge_card(response.gpus[1], response).level is Level.OK, "the other card is not judged for it"
    assert judge_guest(response).level is level
    assert judge_guest(response).reasons[0].words.startswith("GPU 0: ")


@pytest.mark.parametrize("number", [13, 31, 43, 45, 8, 137])
def test_what_an_application_did_never_makes_a_card_sick(number: int) -> None:
    response = answer()
    response.gpus[0].xids.append(xid(number, count=10_000))
    assert judge_card(response.gpus[0], response).level is Level.OK


@pytest.mark.parametrize(
    ("entry", "level"),
    [
        (xid(48, age_ms=XID_COUNTS_MS), Level.FAILED),
        (xid(48, age_ms=XID_COUNTS_MS + 1), Level.OK),
        (xid(48, age_ms=None), Level.FAILED),
        (xid(48, count=0), Level.OK),
        (xid(79, nvswitch=True), Level.OK),
    ],
)
def test_an_xid_speaks_against_a_card_for_a_day(entry: XidCount, level: Level) -> None:
    response = answer()
    response.gpus[0].xids.append(entry)
    assert judge_card(response.gpus[0], response).level is level


def test_a_card_whose_health_was_not_asked_is_unknown_and_never_ok() -> None:
    response = answer()
    del response.groups[:]
    verdict = judge_card(response.gpus[0], response)
    assert (verdict.level, verdict.reasons[0].code) == (Level.UNKNOWN, "not_asked")


def test_a_value_that_could_not_be_read_makes_the_verdict_unknown() -> None:
    response = answer()
    response.gpus[0].errors.append("row_remapping: unknown error (999)")
    verdict = judge_card(response.gpus[0], response)
    assert (verdict.level, verdict.reasons[0].code) == (Level.UNKNOWN, "unread")


def test_a_base_value_that_a_card_does_not_have_leaves_its_verdict_alone() -> None:
    response = answer()
    for name in ("temperature_c", "power_usage_mw"):
        response.gpus[0].ClearField(name)
    response.gpus[0].errors.extend(["temperature: not supported", "power: not supported"])
    assert judge_card(response.gpus[0], response).level is Level.OK


def test_an_entry_about_another_group_leaves_the_verdict_alone() -> None:
    response = answer()
    response.gpus[0].errors.extend(["power_limit: unknown error (999)", "activity: not asked, because nvmlX did not answer"])
    assert judge_card(response.gpus[0], response).level is Level.OK


def test_a_base_value_that_is_unset_without_an_entry_hides_no_group_that_was_not_read() -> None:
    response = answer()
    response.gpus[0].ClearField("temperature_c")
    response.gpus[0].errors.append("health: not asked, because nvmlX did not answer")
    assert judge_card(response.gpus[0], response).level is Level.UNKNOWN


def test_persistence_mode_matters_with_confidential_computing_only() -> None:
    response = answer()
    response.cc_enabled = False
    TROUBLE["persistence_mode"](response.gpus[0])
    assert judge_card(response.gpus[0], response).level is Level.OK


def test_a_slow_generation_of_an_idle_link_is_no_trouble() -> None:
    response = answer()
    response.gpus[0].pcie_generation, response.gpus[1].pcie_generation = 1, 5
    assert judge_card(response.gpus[0], response).level is Level.OK


@pytest.mark.parametrize(
    ("given", "pci_devices", "codes"), [(4, 3, ["cards_missing_on_bus", "cards_missing"]), (3, 2, ["cards_missing_on_bus"])]
)
def test_fewer_cards_than_were_given_or_are_on_the_bus_fail_the_guest(given: int, pci_devices: int, codes: list[str]) -> None:
    response = answer()
    response.pci_devices = pci_devices
    verdict = judge_guest(response, cards_given=given)
    assert (verdict.level, [reason.code for reason in verdict.reasons]) == (Level.FAILED, codes)


def test_a_wedged_driver_is_unknown_and_failed_once_the_kernel_log_says_why() -> None:
    response = GpuInfoResponse(error="the driver did not answer")
    assert judge_guest(response).level is Level.UNKNOWN
    response.unplaced_xids.append(xid(119, age_ms=HOUR_MS))
    verdict = judge_guest(response)
    assert (verdict.level, [reason.code for reason in verdict.reasons]) == (Level.FAILED, ["xid_unplaced", "unknown"])


def test_a_guest_without_a_card_is_ok_unless_it_was_given_one() -> None:
    assert judge_guest(GpuInfoResponse()).level is Level.OK
    assert judge_guest(GpuInfoResponse(), cards_given=1).level is Level.FAILED


@given(any_message(GpuInfoResponse), st.lists(st.sampled_from(sorted(TROUBLE)), max_size=4), st.sampled_from(sorted(TROUBLE)))
def test_more_trouble_never_makes_a_verdict_better(response: GpuInfoResponse, before: list[str], more: str) -> None:
    response.gpus.add().CopyFrom(healthy(0))
    response.gpus.add().CopyFrom(healthy(1))
    card = response.gpus[-1]
    response.cc_enabled = True
    for trouble in before:
        TROUBLE[trouble](card)
    sick = judge_card(card, response).level
    # One number says what the driver asks for: a milder wish in its place is less trouble and not more.
    if more == "recovery_wish" and "recovery_action" in before:
        return
    TROUBLE[more](card)
    assert judge_card(card, response).level >= sick


XIDS = st.builds(
    XidCount,
    xid=st.integers(0, 200),
    count=st.integers(0, 5),
    last_age_ms=st.none() | st.integers(0, 2 * XID_COUNTS_MS),
    nvswitch=st.booleans(),
)


@given(any_message(GpuInfoResponse), st.lists(XIDS, max_size=3), XIDS)
def test_one_more_xid_never_makes_the_verdict_of_a_card_or_its_guest_better(
    response: GpuInfoResponse, before: list[XidCount], more: XidCount
) -> None:
    card = response.gpus.add()
    card.CopyFrom(healthy())
    card.xids.extend(before)
    response.unplaced_xids.extend(before)
    sick, of_guest = judge_card(card, response).level, judge_guest(response).level
    card.xids.append(more)
    assert judge_card(card, response).level >= sick
    assert judge_guest(response).level >= of_guest
    response.unplaced_xids.append(more)
    assert judge_guest(response).level >= of_guest


@given(any_message(GpuInfoResponse), st.integers(0, 1000), st.integers(1, 1000))
def test_one_card_more_that_is_missing_never_makes_the_verdict_of_a_guest_better(
    response: GpuInfoResponse, given_cards: int, more: int
) -> None:
    few, many = (judge_guest(response, count).level for count in (given_cards, given_cards + more))
    assert many >= few


@given(any_message(GpuInfoResponse))
def test_cards_judged_together_get_the_verdicts_that_they_get_alone(response: GpuInfoResponse) -> None:
    assert judge_cards(response) == [judge_card(card, response) for card in response.gpus]


@given(any_message(GpuInfoResponse), st.none() | st.integers(0, 2**31))
def test_any_message_gets_a_verdict_whose_reasons_fit_it(response: GpuInfoResponse, given_cards: int | None) -> None:
    for verdict in [judge_guest(response, given_cards), *(judge_card(card, response) for card in response.gpus)]:
        assert verdict.level == max((reason.level for reason in verdict.reasons), default=Level.OK)
