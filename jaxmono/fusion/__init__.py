"""Graph to Plan: what runs together, where values live, who waits for whom, in which order."""

from __future__ import annotations

from jaxmono.fusion.errors import PlanError
from jaxmono.fusion.planner import make_plan

__all__ = ["PlanError", "make_plan"]
