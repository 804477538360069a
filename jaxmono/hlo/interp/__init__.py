"""A NumPy reference interpreter for Graphs: what every op means, independent of any compiler.

`evaluate` runs a Graph. One module holds one family of ops; each registers its functions with
`core.implements`. Speed is second to clarity, but everything is vectorised.
"""

from __future__ import annotations

import importlib

from jaxmono.hlo.interp.core import Unsupported, evaluate

__all__ = ["Unsupported", "evaluate"]

for _family in ("contractions", "control", "elementwise", "indexing", "movement", "reductions",
                "rng", "sorting", "transforms"):
    importlib.import_module(f"{__name__}.{_family}")
