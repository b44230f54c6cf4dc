"""Who asks what, and when: one description that bench, simulation and planning share. Knows no server and no model."""

from __future__ import annotations

from octavo.workload.generate import requests_of
from octavo.workload.request import Request
from octavo.workload.spec import PRESETS, Workload, load_workload

__all__ = ["PRESETS", "Request", "Workload", "load_workload", "requests_of"]
