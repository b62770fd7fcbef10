"""What the guest knows about its own machine besides GPUs: system, network, containers, identity, power.

Each file is one part, reads with root paths that are passed in, and fails alone: a part that cannot be read raises FactError or is left
out and logged, and never becomes a zero.
"""
