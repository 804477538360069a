"""jaxmono: a JAX function as one generated GPU kernel, run by XLA.

    import jaxmono

    fast = jaxmono.jit(fn)
    fast(x)
    print(fast.explain(x))
"""

from __future__ import annotations

from jaxmono import _driver, _logging
from jaxmono._api import Jitted, explain, jit, tune
from jaxmono._errors import (
    CompileError,
    ConfigError,
    JaxmonoError,
    JaxmonoWarning,
    UnsupportedError,
)
from jaxmono._explain import Coverage, KernelReport, Refusal, Report, Work
from jaxmono._stages import Compiled, Lowered
from jaxmono.tuning.report import ProblemReport, TuningReport

__version__ = "0.1.0"

__all__ = [
    "CompileError",
    "Compiled",
    "ConfigError",
    "Coverage",
    "JaxmonoError",
    "JaxmonoWarning",
    "Jitted",
    "KernelReport",
    "Lowered",
    "ProblemReport",
    "Refusal",
    "Report",
    "TuningReport",
    "UnsupportedError",
    "Work",
    "__version__",
    "explain",
    "jit",
    "tune",
]

_logging.configure()
_driver.install()
