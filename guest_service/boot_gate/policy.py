"""What the boot gate asks for, as a TOML file says it.

Every default is the strict answer, so that a key left out, or a policy without a file, can only shut the gate further. No file is looked
for where nobody named one: a policy that is read by accident is none. Which checks there are is not configurable beyond these keys.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from guest_transport.settings.read import read_settings

# More cards than any machine has: a larger number is a typing error, not an expectation.
EXPECTED_GPUS_LIMIT = 1024

_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=4096, pattern=r"\A[^\x00]+\Z")]


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One policy. Read by read_policy(); `Policy()` is the strictest."""

    # Whether each card is attested. False: only the inventory and expected_gpus are checked.
    attest_gpu: bool = True
    # How many NVIDIA cards must be there. Unset: any number, none included, as long as each card passes.
    expected_gpus: Annotated[int, msgspec.Meta(ge=0, le=EXPECTED_GPUS_LIMIT)] | None = None
    # Lets DevTools mode pass, which lets debuggers and profilers into a GPU in confidential-computing mode.
    allow_devtools: bool = False
    # Lets a claim say `dbgstat` "enabled".
    allow_debug: bool = False
    # Lets a claim say `secboot` false.
    allow_insecure_boot: bool = False
    # Program and leading arguments of NVIDIA's verifier; found on PATH unless it has a slash.
    verifier: Annotated[tuple[_Word, ...], msgspec.Meta(min_length=1, max_length=64)] = ("nvattest",)
    # Where the verifier's own output is kept, for a later judgement. Unset: nowhere.
    evidence_file: _Word | None = None

    def __post_init__(self) -> None:
        """Refuse what the types cannot say."""
        if self.evidence_file is not None and not Path(self.evidence_file).is_absolute():
            raise ValueError("evidence_file: must be an absolute path, because a unit's working directory is not the operator's")


def read_policy(path: Path | None) -> Policy:
    """The policy in the file at `path`, or the strictest one for None; raises SettingsError."""
    return Policy() if path is None else read_settings(path, Policy)
