"""The boot gate: may this machine be given its secrets, as far as its GPUs go?

It runs once, before the services that it guards, and fails closed: whatever cannot be read, understood or finished in time is a refusal.
It decides from three witnesses that do not know each other (the PCI bus, NVIDIA's verifier, NVML) because each of them alone can be made
to forget a card. Rejected: a check inside the agent, which would have to run before it is known whether the agent may.
"""
