"""`guest-service gpu-info`: one sample, printed as one line of JSON.

The order is the speed: stdout is secured, the library starts to load in its thread, and only then is the rest imported. It always prints a
result when it can name what went wrong; an exception that gets out of here is our bug, and shows as a traceback and exit status 1.
"""

import sys

from guest_service.collector.arguments import USAGE, ArgumentsError, parse
from guest_service.collector.library import DEFAULT_LIBRARY, Library
from guest_service.collector.line import Output, complain, to_json

WRONG_USE = 2


def main(argv: list[str], binding: str | None = None) -> int:
    """Run with the arguments after `gpu-info`; `binding` is the file pynvml.py, searched on sys.path when it is not given.

    Returns the exit status. End the process with os._exit afterwards: the driver's library is still loaded, its destructors are not ours
    to run, and the interpreter's own end costs 3 ms.
    """
    try:
        arguments = parse(argv)
    except ArgumentsError as error:
        complain(str(error))
        return WRONG_USE
    output = Output()
    if arguments.help:
        return output.write(USAGE.rstrip("\n"))
    if arguments.simulate is not None:
        return _print_simulated(arguments.simulate, output)
    return _print_sample(Library(arguments.nvml_library or DEFAULT_LIBRARY), binding, output)


def _die_on_interrupt() -> None:
    """Ctrl-C ends the process at once, also inside a call of the driver, and without a traceback."""
    import signal  # noqa: PLC0415 (the library's thread runs meanwhile)

    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _print_sample(library: Library, binding: str | None, output: Output) -> int:
    # The library's thread runs while these are imported.
    from guest_service.collector.binding import binding_file, load_binding  # noqa: PLC0415
    from guest_service.collector.failure import SampleFailure  # noqa: PLC0415
    from guest_service.collector.nvml import Nvml  # noqa: PLC0415
    from guest_service.collector.sample import failed, take_sample  # noqa: PLC0415

    _die_on_interrupt()
    try:
        nvml = Nvml(library, load_binding(binding_file(sys.path) if binding is None else binding))
    except SampleFailure as failure:
        sample = failed(str(failure))
    else:
        sample = take_sample(nvml, complain)
    status = output.write(to_json(sample))
    _end(library)
    return status


def _end(library: Library) -> None:
    """End NVML after the result is out, so that a driver that cannot end loses nothing."""
    from guest_service.collector.failure import NvmlFailure  # noqa: PLC0415

    if (code := library.shutdown()) != 0:
        complain(f"nvmlShutdown: {NvmlFailure(code)}")


def _print_simulated(name: str, output: Output) -> int:
    from guest_service.collector.sample import take_sample  # noqa: PLC0415 (not needed on a real machine, here and below)
    from guest_service.simulator.driver import SimulatedDriver  # noqa: PLC0415
    from guest_service.simulator.rack import load_rack  # noqa: PLC0415
    from guest_service.simulator.table import RackError  # noqa: PLC0415

    _die_on_interrupt()
    try:
        rack = load_rack(name)
    except RackError as error:
        complain(str(error))
        return WRONG_USE
    return output.write(to_json(take_sample(SimulatedDriver(rack), complain)))
