"""StableHLO (as JAX lowers it) to Graph. The only part of ``hlo`` that imports JAX."""

from __future__ import annotations

from jaxmono.hlo.importer.module import import_function, import_module, module_functions
from jaxmono.hlo.importer.origin import Imported, Origin

__all__ = ["Imported", "Origin", "import_function", "import_module", "module_functions"]
