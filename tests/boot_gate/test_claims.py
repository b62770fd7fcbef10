"""The verifier's words: any change of a good answer shuts the gate, unless it adds a key that the gate has no opinion on."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_service.boot_gate.claims import judge_claims, parse_answer, parse_claims
from guest_service.boot_gate.errors import GateStopError, RefusalError, UnreadableError
from guest_service.boot_gate.policy import Policy
from tests.boot_gate.machine import GOOD_CLAIM, good_answer

NONCE = "0123456789abcdef" * 4
# The keys that the gate reads; the others of a real claim are the verifier's own.
JUDGED = ("x-nvidia-device-type", "eat_nonce", "x-nvidia-gpu-attestation-report-nonce-match", "measres", "secboot", "dbgstat")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
other_keys = st.text().filter(lambda key: key not in {*JUDGED, "ueid", "result_code", "claims"})


def answer_of(cards: int) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(json.dumps(good_answer(cards)).replace("NONCE", NONCE))
    return answer


def judge(data: bytes, *, cards: int, policy: Policy | None = None) -> None:
    """What the gate does with an answer of a verifier that exited with 0."""
    answer = parse_answer(data)
    if answer.result_code != 0:
        raise RefusalError(f"result code {answer.result_code}")
    judge_claims(parse_claims(answer.claims), nonce=NONCE, cards=cards, policy=policy or Policy())


def judged(answer: object, *, cards: int, policy: Policy | None = None) -> None:
    judge(json.dumps(answer).encode(), cards=cards, policy=policy)


@pytest.mark.parametrize("cards", [1, 2, 8])
def test_a_good_answer_passes(cards: int) -> None:
    judged(answer_of(cards), cards=cards)


@given(cards=st.integers(1, 4), data=st.data())
def test_a_value_of_a_judged_key_that_is_anything_else_is_refused(cards: int, data: st.DataObject) -> None:
    answer = answer_of(cards)
    card, key = data.draw(st.integers(0, cards - 1)), data.draw(st.sampled_from(JUDGED))
    good = answer["claims"][card][key]
    # True and 1 are equal to Python, and not to the gate.
    other = data.draw(json_values.filter(lambda value: type(value) is not type(good) or value != good))
    answer["claims"][card][key] = other
    with pytest.raises(GateStopError, match=rf"^verifier: claim {card}: "):
        judged(answer, cards=cards)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("x-nvidia-device-type", "GPU"),
        ("eat_nonce", ""),
        ("x-nvidia-gpu-attestation-report-nonce-match", False),
        ("measres", "failure"),
        ("secboot", False),
        ("dbgstat", "enabled"),
    ],
)
def test_the_other_answer_to_each_question_is_refused(key: str, value: object) -> None:
    answer = answer_of(2)
    answer["claims"][1][key] = value
    with pytest.raises(RefusalError, match=r"^verifier: claim 1: "):
        judged(answer, cards=2)


@given(cards=st.integers(1, 4), data=st.data())
def test_a_judged_key_that_is_missing_is_refused(cards: int, data: st.DataObject) -> None:
    answer = answer_of(cards)
    card, key = data.draw(st.integers(0, cards - 1)), data.draw(st.sampled_from(JUDGED))
    del answer["claims"][card][key]
    with pytest.raises(UnreadableError, match=f"claim {card}: {key} is missing"):
        judged(answer, cards=cards)


@given(cards=st.integers(1, 4), data=st.data(), key=other_keys, value=json_values)
def test_a_key_that_nobody_judges_changes_nothing(cards: int, data: st.DataObject, key: str, value: object) -> None:
    answer = answer_of(cards)
    answer["claims"][data.draw(st.integers(0, cards - 1))][key] = value
    answer[key] = value
    judged(answer, cards=cards)


@given(cards=st.integers(1, 4), value=json_values, key=st.sampled_from(["result_code", "claims"]))
def test_an_answer_of_another_shape_is_refused(cards: int, value: object, key: str) -> None:
    answer = answer_of(cards)
    if type(value) is type(answer[key]) and value == answer[key]:
        return
    answer[key] = value
    with pytest.raises(GateStopError):
        judged(answer, cards=cards)
    del answer[key]
    with pytest.raises(GateStopError):
        judged(answer, cards=cards)


@given(value=json_values)
def test_anything_else_in_a_claims_place_is_refused(value: object) -> None:
    answer = answer_of(2)
    answer["claims"][1] = value
    with pytest.raises(GateStopError):
        judged(answer, cards=2)


@given(claims=st.integers(0, 12), cards=st.integers(1, 12))
def test_every_card_has_exactly_one_claim(claims: int, cards: int) -> None:
    if claims == cards:
        judged(answer_of(claims), cards=cards)
    else:
        with pytest.raises(RefusalError, match=f"claims for {claims} cards, and {cards} on the PCI bus"):
            judged(answer_of(claims), cards=cards)


@given(data=st.binary())
def test_bytes_that_are_no_answer_are_refused_and_nothing_worse(data: bytes) -> None:
    with pytest.raises(GateStopError):
        judge(data, cards=1)


@given(cut=st.integers(0, 300), junk=st.binary(min_size=1, max_size=4))
def test_a_torn_or_overwritten_answer_never_passes_by_accident(cut: int, junk: bytes) -> None:
    whole = json.dumps(answer_of(1)).encode()
    at = cut % len(whole)
    with pytest.raises(GateStopError):
        judge(whole[:at], cards=1)
    broken = whole[:at] + b"\xff" + junk + whole[at + 1 :]
    with pytest.raises(GateStopError):
        judge(broken, cards=1)


GOOD_TEXT = json.dumps(answer_of(1))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("null", "a JSON object is needed, and this is null"),
        ("[]", "a JSON object is needed, and this is a list"),
        (GOOD_TEXT + GOOD_TEXT, "not JSON"),
        ("\ufeff" + GOOD_TEXT, "not JSON"),
        (GOOD_TEXT.replace('"secboot": true', '"secboot": false, "secboot": true'), "a key stands twice"),
        (GOOD_TEXT.replace('"result_code": 0', '"result_code": 1, "result_code": 0'), "a key stands twice"),
        (GOOD_TEXT.replace('"hwmodel"', '"x": [{"y": 1, "y": 2}], "hwmodel"'), "a key stands twice"),
        (GOOD_TEXT.replace('"result_code": 0', '"result_code": NaN'), "NaN is no JSON number"),
        (GOOD_TEXT.replace('"hwmodel"', '"x": -Infinity, "hwmodel"'), "-Infinity is no JSON number"),
        (GOOD_TEXT.replace('"hwmodel"', '"x": 1e999, "hwmodel"'), "too large"),
        (GOOD_TEXT.replace('"hwmodel"', f'"x": {"9" * 10_000}, "hwmodel"'), "not JSON that can be judged"),
        (GOOD_TEXT.replace('"hwmodel"', f'"x": {"[" * 100_000}{"]" * 100_000}, "hwmodel"'), "nested too deeply"),
        (GOOD_TEXT.replace('"result_code": 0', '"result_code": 0.0'), "result_code is a number, not a whole number"),
        (GOOD_TEXT.replace('"result_code": 0', '"result_code": "0"'), "result_code is a string"),
        (GOOD_TEXT.replace('"result_code": 0', '"result_code": false'), "result_code is a boolean"),
        (GOOD_TEXT.replace('"secboot": true', '"secboot": 1'), "secboot is a number, not a boolean"),
        (GOOD_TEXT.replace('"secboot": true', '"secboot": "true"'), "secboot is a string"),
        (GOOD_TEXT.replace('"success"', '"Success"'), "measres is 'Success'"),
        (GOOD_TEXT.replace('"gpu"', '"nvswitch"'), "x-nvidia-device-type is 'nvswitch'"),
        (GOOD_TEXT.replace(NONCE, NONCE.upper()), "eat_nonce is not the nonce of this run"),
        (GOOD_TEXT.replace(NONCE, NONCE + "0"), "eat_nonce is not the nonce of this run"),
        (GOOD_TEXT.replace(NONCE, "0" * 64), "eat_nonce is not the nonce of this run"),
        (GOOD_TEXT.replace(NONCE, "\\ud800"), "eat_nonce is not the nonce of this run"),
    ],
)
def test_an_answer_that_two_readers_could_read_differently_is_refused(text: str, said: str) -> None:
    with pytest.raises(GateStopError, match=r"^verifier: ") as stopped:
        judge(text.encode("utf-8"), cards=1)
    assert said in str(stopped.value)
    assert len(str(stopped.value)) < 400


def test_bytes_that_are_not_utf_8_are_refused() -> None:
    with pytest.raises(UnreadableError, match="not UTF-8 at byte"):
        judge(GOOD_TEXT.encode("utf-16"), cards=1)
    with pytest.raises(UnreadableError, match="not UTF-8 at byte"):
        judge(GOOD_TEXT.replace("GH100", "\xff").encode("latin-1"), cards=1)


def test_two_claims_of_one_card_do_not_stand_for_two_cards() -> None:
    answer = answer_of(2)
    for claim in answer["claims"]:
        claim["ueid"] = "478176379286082186618948445787393647364802107249"
    with pytest.raises(RefusalError, match="same ueid"):
        judged(answer, cards=2)
    answer["claims"][1]["ueid"] = "1"
    judged(answer, cards=2)
    answer["claims"][1]["ueid"] = 1
    with pytest.raises(UnreadableError, match="ueid is a number"):
        judged(answer, cards=2)


@given(allow_debug=st.booleans(), allow_insecure_boot=st.booleans(), allow_devtools=st.booleans(), data=st.data())
def test_no_allowance_lets_a_fault_of_another_kind_pass(
    allow_debug: bool, allow_insecure_boot: bool, allow_devtools: bool, data: st.DataObject
) -> None:
    policy = Policy(allow_debug=allow_debug, allow_insecure_boot=allow_insecure_boot, allow_devtools=allow_devtools)
    changes: dict[str, Any] = {"secboot": False, "dbgstat": "enabled", "measres": "failure", "eat_nonce": "1" * 64}
    changed = data.draw(st.sets(st.sampled_from(sorted(changes))))
    answer = answer_of(1)
    answer["claims"][0] |= {key: changes[key] for key in changed}
    allowed = {key for key, may in (("secboot", allow_insecure_boot), ("dbgstat", allow_debug)) if may}
    if changed <= allowed:
        judged(answer, cards=1, policy=policy)
    else:
        with pytest.raises(RefusalError):
            judged(answer, cards=1, policy=policy)


@pytest.mark.parametrize("words", ["", "Enabled", "unknown", "disabled ", "enabled\n"])
def test_allow_debug_knows_no_third_word(words: str) -> None:
    answer = answer_of(1)
    answer["claims"][0]["dbgstat"] = words
    with pytest.raises(RefusalError, match="dbgstat"):
        judged(answer, cards=1, policy=Policy(allow_debug=True))


def test_the_good_claim_of_these_tests_has_every_judged_key() -> None:
    assert set(JUDGED) <= set(copy.deepcopy(GOOD_CLAIM))
