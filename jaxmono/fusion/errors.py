"""The planner's exception."""

from __future__ import annotations


class PlanError(Exception):
    """A plan that is not legal, or a graph that the planner cannot take; the message says why."""
