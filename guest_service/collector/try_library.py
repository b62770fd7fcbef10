"""Loads a library as the collector would, and says which file it was, or the loader's own words: `python -I -S try_library.py NAME`.

For the doctor: a process of its own, because loading runs the library's own code, which may hang or crash. NVML is not started. One line of
JSON on stdout, `{"file": …, "words": …}`; with LD_DEBUG=libs in the environment the loader tells on stderr where it looked.
"""

import _ctypes
import posix
import sys

STDOUT, STDERR = 1, 2
INIT = "nvmlInit_v2"


def try_library(name: str) -> tuple[str, str]:
    """The file that `name` is loaded from (empty when it is not), and the loader's words (empty when all is well)."""
    before = _mapped()
    try:
        _ctypes.dlsym(_ctypes.dlopen(name), INIT)
    except OSError as error:
        return "", str(error)
    new = [file for file in _mapped() if file not in before]
    # What the library itself needs is mapped too.
    return next((file for file in new if "nvidia-ml" in file.rpartition("/")[2]), new[0] if new else name), ""


def _mapped() -> list[str]:
    """Files that are mapped into this process, links resolved (proc(5), maps: the path is the sixth field)."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 -- pathlib is not needed for one file
        lines = [line.rstrip("\n").split(None, 5) for line in maps]
    return [fields[5] for fields in lines if len(fields) == 6 and fields[5].startswith("/")]


def run() -> None:
    """Try the library of the command line."""
    import json  # noqa: PLC0415 -- before the library is loaded, whose own code may change anything

    out = posix.dup(STDOUT)
    # What the library prints as it loads is no answer of ours.
    posix.dup2(STDERR, STDOUT)
    file, words = try_library(sys.argv[1])
    posix.write(out, (json.dumps({"file": file, "words": words}) + "\n").encode("ascii"))
    # The library's destructors are not ours to run.
    posix._exit(0)


if __name__ == "__main__":
    run()
