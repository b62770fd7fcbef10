"""Guests that libvirt runs: found by themselves, by the domains with a vsock device."""
