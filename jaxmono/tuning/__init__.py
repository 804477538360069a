"""Measured schedules: candidates, a light profiler, a cache of what it found, the choice.

    Plan -> Problems (one per Sig worth tuning) -> measured alone -> rows in tuning.sqlite3
         -> chosen schedules for `codegen.generate`

`Tuner` is what the driver consults. Nothing here imports JAX; what measures on a GPU runs in
processes of its own (`gpu_worker`, `compile_worker`).
"""

from jaxmono.tuning.cache import TuningCache
from jaxmono.tuning.problem import Conditions, Problem, problems_of
from jaxmono.tuning.report import Beside, ProblemReport, TuningReport
from jaxmono.tuning.tuner import Tuner

__all__ = ["Beside", "Conditions", "Problem", "ProblemReport", "Tuner", "TuningCache",
           "TuningReport", "problems_of"]
