"""Octavo beside other engines: the same work on each in turn, in one call. See `python -m benchmarks.peers --help`."""
