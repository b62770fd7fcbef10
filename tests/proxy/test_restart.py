"""What a reload takes, and what needs a restart: everything that is not named here, also what is added one day."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from vmm_proxy.app import needs_restart
from vmm_proxy.config import Setup, read_setup

TAKEN = {"access", "tls"}


def changed(setup: Setup, **parts: object) -> Setup:
    return msgspec.structs.replace(setup, **parts)


@pytest.mark.parametrize("part", [name for name in Setup.__struct_fields__ if name not in TAKEN])
def test_a_change_of_any_other_part_needs_a_restart(part: str) -> None:
    setup = read_setup(None)
    assert needs_restart(setup, changed(setup, **{part: object()}))
    assert not needs_restart(setup, read_setup(None))


def test_rules_are_taken_and_whom_a_listener_lets_in_is_not() -> None:
    setup = read_setup(None)
    assert not needs_restart(setup, changed(setup, access=replace(setup.access, own_uid=setup.access.own_uid + 1)))
    assert needs_restart(setup, changed(setup, access=replace(setup.access, loopback_only=not setup.access.loopback_only)))


def test_renewed_certificates_are_taken_and_tls_that_comes_or_goes_is_not() -> None:
    plain = read_setup(None)
    before, renewed = changed(plain, tls="before"), changed(plain, tls="renewed")
    assert not needs_restart(before, renewed)
    assert needs_restart(plain, renewed)
    assert needs_restart(before, plain)
