"""`make coverage`: `python -m tools.covered [pytest arguments]`; without arguments all tests, and a verdict.

Exit status 1 when a test failed or too little was covered. A part of the tests (make coverage TESTS=tests/proxy) is shown and not judged.
"""

from __future__ import annotations

import sys

from tools.covered.measuring import measure
from tools.covered.report import combine, judge

# A measured process takes about twice its time, and tests that wait for one are given three times theirs.
PYTEST = ("-m", "pytest", "-q", "-n", "4", "--timeout", "180", "-m", "not vm and not deb and not cost")


def main(arguments: list[str]) -> int:
    """Measure, show, judge."""
    status = measure([*PYTEST, *arguments])
    enough = judge(combine())
    return status or (0 if enough or arguments else 1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
