"""Program inputs that a kernel must read as memory that changes."""

from __future__ import annotations

from jaxmono.fusion.plan import Buffer, Group, Place, Plan
from jaxmono.fusion.verify import updated_param


def whole(plan: Plan, i: int) -> Buffer:
    """The buffer in which buffer ``i`` lies."""
    b = plan.buffers[i]
    return whole(plan, b.index) if b.place is Place.PART else b


class Written:
    """What a plan's groups write over.

    Attributes:
      inputs: those of which parts are updated, and those whose new values are read again. Who reads
        another one in whose place an output comes is done in an earlier stage, and is the last to
        read that memory there (fusion/donated.py).
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        again = {whole(plan, b).id for g in plan.groups for b in g.params}
        again.update(b for g in plan.groups for r, b in enumerate(g.results)
                     if updated_param(g.sig, r) is not None)
        self.inputs = {b.alias for b in plan.outputs if b.alias is not None and b.id in again}

    def is_read_only(self, g: Group, param: int) -> bool:
        """Whether nobody writes a param while the group may hold some of it, in a cache too."""
        b = whole(self._plan, g.params[param])
        return b.place is Place.INPUT and b.index not in self.inputs \
            and all(self._plan.buffers[r].alias != b.index for r in g.results)
