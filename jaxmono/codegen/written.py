"""Program inputs that a kernel must read as memory that changes."""

from __future__ import annotations

from jaxmono.fusion.plan import Place, Plan
from jaxmono.fusion.verify import updated_param


def written_inputs(plan: Plan) -> set[int]:
    """Inputs that a kernel writes while others read them: those of which parts are updated, and
    those whose new values are read again. Who reads another input in whose place an output comes
    is done in an earlier stage, and is the last to read that memory there (donated.py)."""
    buffers = {b.id: b for b in plan.buffers}
    again = {b for g in plan.groups for b in g.params}
    again.update(buffers[b].index for b in tuple(again) if buffers[b].place is Place.PART)
    again.update(b for g in plan.groups for r, b in enumerate(g.results)
                 if updated_param(g.sig, r) is not None)
    return {b.alias for b in plan.outputs if b.alias is not None and b.id in again}
