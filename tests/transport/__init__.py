"""Tests of guest_transport, on real sockets, processes and signals."""
