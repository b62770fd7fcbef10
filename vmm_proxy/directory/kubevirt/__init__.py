"""Guests that KubeVirt runs: found by themselves, by the instances on this node that have a vsock device."""
