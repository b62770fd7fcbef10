"""Runs NVIDIA's verifier with a nonce of this run.

It judges nothing: what the program printed goes to the evidence file and to claims.py. The program and its leading arguments are the
policy's; the arguments that make it answer for this run are always appended, so that no policy can leave the nonce out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from guest_service.boot_gate.bounded_process import Finished, run_bounded
from guest_service.boot_gate.errors import NotStartedError, UnreadableError

# Collecting evidence, certificate status and reference values of eight cards takes tens of seconds over a slow network; a verifier that
# is not done after five minutes waits for something that will not come.
VERIFIER_SECONDS = 300.0
# Claims of one card with their certificates are some 10 KiB; this is room for hundreds, and less than would hurt a small VM.
OUTPUT_LIMIT_BYTES = 8 * 1024 * 1024
NONCE_BYTES = 32

# What a run of the verifier looks like to the gate: the nonce as hex in, the ended program out, UnreadableError otherwise.
Verifier = Callable[[str], Finished]


def verifier_of(command: Sequence[str], *, seconds: float = VERIFIER_SECONDS) -> Verifier:
    """The verifier that `command` (program and leading arguments) starts."""

    def verify(nonce: str) -> Finished:
        argv = [*command, "attest", "--device", "gpu", "--verifier", "local", "--nonce", nonce, "--format", "json"]
        try:
            return run_bounded(argv, what="verifier", seconds=seconds, stdout_limit_bytes=OUTPUT_LIMIT_BYTES)
        except NotStartedError as error:
            raise UnreadableError(f"{error}; install it, or name another as verifier in the policy") from error

    return verify
