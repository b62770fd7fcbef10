"""What the agent reads from the guest apart from its cards: containers, identity, the off switch, and the boot gate's policy."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from guest_service.boot_gate.policy import Policy, read_policy
from guest_service.doctor.machine import Guest
from guest_service.host_facts.containers import ENGINE_SOCKETS, ContainerEngine
from guest_service.host_facts.errors import FactError
from guest_service.host_facts.identity import Identity, machine_name
from guest_transport.doctor.checks import in_thread
from guest_transport.doctor.files import FileFacts, may, read_facts, this_user
from guest_transport.doctor.findings import Finding, note, ok, wrong
from guest_transport.errors import SettingsError


async def examine_containers(guest: Guest) -> Sequence[Finding]:
    """The container engine, asked as the agent asks it."""
    configured = guest.config.containers.socket
    if configured == "off":
        return [note("off: no engine is asked")]
    sockets = ENGINE_SOCKETS if configured == "auto" else (Path(configured),)
    there = await in_thread(lambda: next((path for path in sockets if path.exists()), None))
    if there is None:
        missing = " and ".join(map(str, sockets))
        if configured == "auto":
            return [note(f"no container engine: {missing} are not there")]
        return [wrong(f"{missing} is not there", "start the engine, correct containers.socket, or set it to auto or off")]
    engine = ContainerEngine([there])
    try:
        listed = await engine.list()
    except FactError as error:
        return [wrong(f"{there}: {error.reason}", f"ask it by hand: curl --unix-socket {there} http://localhost/_ping")]
    finally:
        await engine.close()
    return [ok(f"{there} answers: {len(listed.containers)} containers")]


async def examine_identity(guest: Guest) -> Sequence[Finding]:
    """The identity file, or the machine id in its place."""
    if guest.config.identity.file is None:
        return [judge_machine_id(guest.machine_id, await in_thread(lambda: _machine_name(guest.machine_id)))]
    file = Path(guest.config.identity.file)
    try:
        identity = await in_thread(lambda: Identity(version="", file=file, machine_id=guest.machine_id))
    except SettingsError as error:
        return [wrong(str(error), "identity.file: correct it, or leave it out; docs/running.md")]
    info = identity.info(show_tcb=False)
    found = judge_identity_mode(await in_thread(lambda: read_facts(file)))
    return [*found, ok(f"{file}: instance {info.instance_id.hex() or 'without an id'}")]


def _machine_name(machine_id: Path) -> bytes | str:
    """The name that the agent would derive; why not, in words."""
    try:
        return machine_name(machine_id.read_text(encoding="ascii"))
    except OSError as error:
        return error.strerror or str(error)
    except ValueError:
        return "it holds no machine id"


def judge_machine_id(machine_id: Path, name: bytes | str) -> Finding:
    """A name, or none."""
    if isinstance(name, bytes):
        return ok(f"named by {machine_id}: instance {name.hex()}")
    return note(
        f"{machine_id}: {name}; the instance has no id, and no pin can hold it", "systemd-machine-id-setup, or set identity.file"
    )


def judge_identity_mode(facts: FileFacts | OSError) -> list[Finding]:
    """Nobody else may say who this guest is."""
    if isinstance(facts, FileFacts) and facts.mode & (stat.S_IWGRP | stat.S_IWOTH):
        return [wrong(f"{facts.path}: others may write to it: {facts.owners}", f"chmod go-w {facts.path}")]
    return []


async def examine_power(guest: Guest) -> Sequence[Finding]:
    """The command that Shutdown runs."""
    power = guest.config.power
    return [
        judge_power(
            power.shutdown_command,
            await in_thread(lambda: find_command(power.shutdown_command[0], guest.environ)),
            power.allow_shutdown,
        )
    ]


def find_command(name: str, environ: Mapping[str, str]) -> str | None:
    """The program that `name` starts, with the PATH of `environ`. Blocks."""
    return shutil.which(name, path=environ.get("PATH", os.defpath))


def judge_power(command: Sequence[str], program: str | None, allowed: bool | None) -> Finding:
    """Whether a Shutdown would do something."""
    if allowed is False:
        return note("Shutdown is refused: power.allow_shutdown = false")
    if program is None:
        return wrong(
            f"power.shutdown_command: there is no program {command[0]}", "correct it, or set power.allow_shutdown = false"
        )
    who = "callers of Unix sockets and vsock" if allowed is None else "all callers"
    return ok(f"Shutdown runs {program} for {who}")


async def examine_boot_gate(guest: Guest) -> Sequence[Finding]:
    """The policy of the boot gate, where there is one."""
    enabled = await in_thread(lambda: os.path.lexists(guest.gate_unit_wanted))
    if not await in_thread(guest.gate_policy.exists):
        if enabled:
            return [
                wrong(
                    f"the gate is enabled, and {guest.gate_policy} is not there",
                    "write it (docs/boot-gate.md), or disable the gate",
                )
            ]
        return [note(f"not set up: no {guest.gate_policy}")]
    try:
        policy = await in_thread(lambda: read_policy(guest.gate_policy))
    except SettingsError as error:
        return [wrong(str(error), "correct the policy; until then the gate stays shut")]
    verifier, writable = await in_thread(lambda: (find_command(policy.verifier[0], guest.environ), may_keep_evidence(policy)))
    return judge_policy(guest.gate_policy, policy, verifier, enabled=enabled, may_keep=writable)


def may_keep_evidence(policy: Policy) -> bool:
    """Whether this user may write where the policy keeps evidence; true where it keeps none. Blocks."""
    return policy.evidence_file is None or may(Path(policy.evidence_file).parent, os.W_OK | os.X_OK)


def judge_policy(file: Path, policy: Policy, verifier: str | None, *, enabled: bool, may_keep: bool = True) -> list[Finding]:
    """What a run of the gate would stumble over."""
    found: list[Finding] = []
    state = "enabled" if enabled else "not enabled"
    if policy.attest_gpu and verifier is None:
        missing = f"{file}: there is no verifier {policy.verifier[0]}"
        advice = "install it, or name another as verifier in the policy"
        found.append(wrong(missing, advice) if enabled else note(f"{missing}; the gate is not enabled", advice))
    if policy.evidence_file is not None and not may_keep:
        folder = Path(policy.evidence_file).parent
        found.append(wrong(f"evidence_file: {this_user()} may not write in {folder}", "make the folder, or choose another"))
    weaker = [key for key in ("allow_devtools", "allow_debug", "allow_insecure_boot") if getattr(policy, key)]
    weaker += [] if policy.attest_gpu else ["attest_gpu = false"]
    if weaker:
        found.append(note(f"{file}: weaker than the strictest policy: {', '.join(weaker)}"))
    return found or [ok(f"{file}: valid, the gate is {state}")]
