"""`guest-service gpu-info`: one sample, printed as one line of JSON; for the agent in parts, on a descriptor of their own (parts.py).

The order is the speed: stdout is secured, the library is loaded and NVML starts, and everything else is imported in a thread beside it.
NVML has the main thread, because a hand-over from another thread after init costs 1 ms, and up to 4 ms on a busy machine (measured). It
always prints a result when it can name what went wrong; an exception that gets out of here is our bug: a traceback and exit status 1.
"""

import sys

from guest_service.collector.arguments import Arguments, ArgumentsError, parse, usage
from guest_service.collector.beside import Beside
from guest_service.collector.line import Output, complain, to_json
from guest_service.collector.loaded_library import DEFAULT_LIBRARY, Library
from guest_service.collector.parts import Parts, Whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guest_service.collector.nvml_lists import NvmlDriver

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
    # Before the library is loaded: its own start may hang as well.
    _die_on_interrupt()
    if arguments.help:
        return output.write(usage())
    sink = Whole(arguments.groups) if arguments.parts_to is None else Parts(arguments.parts_to)
    if arguments.simulate is not None:
        return _sample_rack(arguments, sink, output)
    return sample_cards(arguments, sink, output, binding)


def _loadable(file: str | None) -> str:
    """What the loader takes as exactly this file; a bare name it would search for elsewhere."""
    if file is None:
        return DEFAULT_LIBRARY
    return file if "/" in file else f"./{file}"


def sample_cards(arguments: Arguments, sink: "Whole | Parts", output: Output, binding: str | None) -> int:
    """Take one sample of the machine's cards into `sink`; returns the exit status."""
    sink.at(None, "library")
    sink.calls("dlopen")
    library = Library(_loadable(arguments.nvml_library))

    def prepare() -> "NvmlDriver":
        from guest_service.collector.binding import binding_file, load_binding  # noqa: PLC0415 (beside nvmlInit)
        from guest_service.collector.nvml_lists import NvmlDriver  # noqa: PLC0415
        from guest_service.collector.sample import take_sample  # noqa: F401, PLC0415 (to have it loaded)

        loaded = load_binding(binding_file(sys.path) if binding is None else binding)
        return NvmlDriver(library, loaded, sink.calls, arguments.process_names)

    prepared = Beside(prepare)
    sink.at(None, "start")
    sink.calls("nvmlInit_v2")
    library.initialize()
    from guest_service.collector.failure import SampleFailure  # noqa: PLC0415 (loaded by now, and below)
    from guest_service.collector.sample import take_sample  # noqa: PLC0415

    try:
        nvml = prepared.result()
    except SampleFailure as failure:
        sink.add({"error": str(failure)})
    else:
        take_sample(nvml, sink, complain, arguments.ask_last, arguments.groups)
    status = _finish(sink, output)
    _end(library)
    return status


def _finish(sink: "Whole | Parts", output: Output) -> int:
    return sink.end() if isinstance(sink, Parts) else output.write(to_json(sink.tree))


def _end(library: Library) -> None:
    """End NVML after the result is out, so that a driver that cannot end loses nothing."""
    from guest_service.collector.failure import NvmlFailure  # noqa: PLC0415 (loaded by now)

    if (code := library.shutdown()) != 0:
        complain(f"nvmlShutdown: {NvmlFailure(code)}")


def _sample_rack(arguments: Arguments, sink: "Whole | Parts", output: Output) -> int:
    from guest_service.collector.sample import take_sample  # noqa: PLC0415 (a real sample imports this beside nvmlInit)
    from guest_service.simulator.driver import SimulatedDriver  # noqa: PLC0415 (no sample of a real card needs it, and below)
    from guest_service.simulator.rack import load_rack  # noqa: PLC0415
    from guest_service.simulator.table import RackError  # noqa: PLC0415

    try:
        rack = load_rack(str(arguments.simulate))
    except RackError as error:
        complain(str(error))
        return WRONG_USE
    driver = SimulatedDriver(rack, calls=sink.calls, process_names=arguments.process_names is not None)
    take_sample(driver, sink, complain, arguments.ask_last, arguments.groups)
    return _finish(sink, output)


def _die_on_interrupt() -> None:
    """Ctrl-C ends the process at once, also inside a call of the driver, and without a traceback."""
    # `signal` would import enum, 3 ms before the library starts; this is what it wraps, and the interpreter has it loaded.
    import _signal  # type: ignore[import-not-found] # noqa: PLC0415 (typeshed has no _signal)

    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
