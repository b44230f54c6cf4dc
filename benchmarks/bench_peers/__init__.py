"""Benchmark clients beside each other, with one load and one server."""
