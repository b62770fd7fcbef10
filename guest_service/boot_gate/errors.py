"""What ends a boot gate run early. Both are verdicts, not accidents.

GateStopError
├── RefusalError     a check did not hold; the message is the one reason
└── UnreadableError  a witness gave nothing that can be judged; for the gate the same as a refusal, with the cause
    └── NotStartedError  its program cannot even be started
"""

from __future__ import annotations


class GateStopError(Exception):
    """The gate stays shut; the message is one line that names the check's subject and what is wrong with it."""


class RefusalError(GateStopError):
    """What was read is not what the policy asks for."""


class UnreadableError(GateStopError):
    """What should have been judged is missing, malformed, too large or late."""


class NotStartedError(UnreadableError):
    """A witness's program cannot be started."""
