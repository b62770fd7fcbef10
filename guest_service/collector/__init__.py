"""One sample of the GPUs, in a process of its own, because an NVML call cannot be cancelled: the process can be killed instead.

Modules here start fast and import nothing that they do not use: no typing, dataclasses, logging or json at run time, because every import
stands between the start of the process and the sample. What runs before the library's thread starts (start, gpu_info, arguments, line,
library) also does without `os` and `__future__`: 1.2 ms of 2.5 (measured, Python 3.11). Rejected: a resident collector (it holds the
device files open and keeps an old driver's library after an upgrade).
"""
