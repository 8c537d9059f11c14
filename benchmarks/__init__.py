"""Benchmarks of tiledev against its rivals: `python -m benchmarks.compare --help`."""
