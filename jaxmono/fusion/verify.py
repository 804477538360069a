"""Is this plan legal? placeholder being written"""
from __future__ import annotations
from jaxmono.fusion.plan import Plan
def verify(plan: Plan) -> None:
    del plan
