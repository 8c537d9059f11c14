"""Tests of `tiledev.training`, and of PyTorch's own training tools on the device.

All of them run in a context that forbids the CPU fallback: what cannot be recorded is an error.
"""
