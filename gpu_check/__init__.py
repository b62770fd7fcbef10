"""Proves the product on a machine with a real NVIDIA GPU, in one run of some two minutes, and writes down what was seen.

    python -m gpu_check [--json FILE]        # exit status 1 when a check fails; `make gpu-check` from a checkout

The nine checks:

1. collector: one sample of the real cards, started as an operator would (`guest-service gpu-info`).
2. proxy: GpuInfo through the proxy keeps every field; the CC state, the age and the errors among them.
3. metrics: the guest's page has the series of every card.
4. no-gpu: the page of a guest without a GPU says up, and has no series of a card.
5. nothing-held: between samples no process runs and nobody holds a device file or the library.
6. late-driver: a driver that is absent and comes is picked up without a restart.
7. hung-collector: a collector that hangs is killed, no other is started before the back-off is over, the system's series stay.
8. steady: two scrapes some time apart both carry the cards, each with its age.
9. nvidia-smi: the dashboard shows what nvidia-smi shows.

And one figure, `ratio`: the collector's time from start to exit against a C program that does the same work on the same library.

Beside it stand what each group of values costs, for both programs, as a table; eight samples at once; and the raw state of confidential
computing: only a real card can tell.

It needs an interpreter that has the wheel, gcc for the first two figures, and nvidia-smi for the ninth check; what is missing is skipped
with its name. It never changes a setting of a card: no reset, no clocks, no persistence, no ready state. Nor does it unload a driver:
for the sixth check an agent gets a /sys of its own in which the module is missing at first, and a path to the library that leads nowhere
at first; for the fourth one without PCI devices.
"""
