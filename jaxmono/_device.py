"""What the driver plans and compiles for: the facts of the local device and its target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax

from jaxmono._errors import CompileError
from jaxmono.codegen.target import Target, arch_of, cuda_target, interpret_target
from jaxmono.fusion.plan import Device

_REFERENCE = Device()
"""The measured device: rates of others are scaled from it by SM count. They rank alternatives;
nothing is correct or not because of them."""
_REFERENCE_ARCH = "sm_90a"


@dataclass(frozen=True)
class Facts:
    """Attributes:
      device: what planning needs.
      target: what codegen needs.
      here: the device is one of this process, so that a kernel for it can be compiled.
    """

    device: Device
    target: Target
    here: bool = True


def facts_for(platform: str, *, interpret: bool) -> Facts:
    """The facts for lowering to a platform.

    Args:
      platform: "cuda", or "cpu": the interpreter plans as for the reference GPU, so that what it
        runs is what a GPU would run.
      interpret: generated code is to run in the SIMT interpreter.

    Returns:
      For a platform without a local device, the reference's facts with ``here`` False: enough to
      plan, not to compile.
    """
    if interpret:
        return Facts(replace(_REFERENCE, name="interpreter"), interpret_target())
    gpu = _local_gpu() if platform == "cuda" else None
    if gpu is None:
        return Facts(_REFERENCE, cuda_target(_REFERENCE_ARCH), here=False)
    return _gpu_facts(gpu)


def _local_gpu() -> Any:
    """The first GPU of this process, or None; a GPU backend is asked only if it is the default."""
    if jax.default_backend() not in ("gpu", "cuda"):
        return None
    return jax.local_devices()[0]


def gpu_ordinal() -> int:
    """The number, among the GPUs that CUDA shows this process, of the one that `facts_for` tells
    of."""
    return int(getattr(_local_gpu(), "local_hardware_id", None) or 0)


def _gpu_facts(gpu: Any) -> Facts:
    """Raises:
      CompileError: the device does not tell its compute capability or its number of SMs.
    """
    capability, sms = getattr(gpu, "compute_capability", None), getattr(gpu, "core_count", None)
    if not capability or not sms:
        raise CompileError(f"{gpu.device_kind} does not tell its compute capability and number of "
                           f"SMs; jaxmono needs an NVIDIA GPU and JAX's CUDA plugin")
    major, minor = (int(part) for part in str(capability).split(".")[:2])
    target = cuda_target(arch_of(major, minor))
    scale = sms / _REFERENCE.sm_count
    return Facts(replace(
        _REFERENCE,
        name=gpu.device_kind,
        sm_count=int(sms),
        shared_bytes=target.shared_bytes,
        read_bytes_per_us=_REFERENCE.read_bytes_per_us * scale,
        matrix_flops_per_us=_REFERENCE.matrix_flops_per_us * scale,
        wgmma=target.wgmma,
    ), target)
