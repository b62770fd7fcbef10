"""What the collector's interpreter runs: `python -I -S start.py BINDING PARENT [ARGUMENT…]`; see command.py.

As a script it is compiled at every start, so it does nothing but find its package. The package's folder goes last on the path: it may
be site-packages, where nothing may stand in for a module of the standard library.
"""

import posix
import sys


def run() -> None:
    """Take one sample and leave, without the interpreter's own end."""
    sys.path.append(__file__.removesuffix("/guest_service/collector/start.py"))
    from guest_service.collector.gpu_info import main  # noqa: PLC0415 (found only now, as the next)
    from guest_service.collector.parent import die_with_parent  # noqa: PLC0415

    die_with_parent(int(sys.argv[2]))

    posix._exit(main(sys.argv[3:], sys.argv[1]))


if __name__ == "__main__":
    run()
