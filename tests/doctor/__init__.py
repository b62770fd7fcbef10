"""Tests of `guest-service doctor` and `vmm-proxy doctor`."""
