"""Measuring an OpenAI-compatible server from outside. Knows workloads and the wire; nothing of an engine."""
