"""Plan to text, for users, goldens and dumps."""

from __future__ import annotations

from jaxmono.fusion.text import plan_to_text as print_plan

__all__ = ["print_plan"]
