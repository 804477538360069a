"""The options of one `jaxmono.jit` function, as the ``mono_call`` primitive carries them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Checked by `jaxmono.jit`; hashable, and equal options share compiled kernels.

    Attributes:
      mode: how much goes into one kernel (see `jaxmono.jit`).
      on_unsupported: "xla" leaves what cannot be taken to XLA; "error" raises.
      interpret: on the CPU, run the generated kernels in the SIMT interpreter.
      later: of ``wait=False``, who makes kernels while XLA runs the function (the driver's
        `jaxmono._later.Later`; equal to itself alone).
    """

    mode: str = "auto"
    on_unsupported: str = "xla"
    interpret: bool = False
    later: Hashable | None = None

    @property
    def tag(self) -> str:
        """A suffix for function names: "" for the defaults, different for other options."""
        words = [self.mode if self.mode != "auto" else "",
                 self.on_unsupported if self.on_unsupported != "xla" else "",
                 "interpret" if self.interpret else ""]
        return "".join(f"_{w}" for w in words if w)
