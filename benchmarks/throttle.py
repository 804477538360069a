"""Whether the GPU lowers its clocks, from NVML (nvidia-ml-py)."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

# Bits of nvmlClocksEventReasons (nvml.h). The others tell of idleness and of settings.
REASONS = {
    0x0000000000000004: "power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000020: "heat (software)",
    0x0000000000000040: "heat (hardware)",
    0x0000000000000080: "power brake",
}


def decoded(mask: int) -> tuple[str, ...]:
    """Names of the reasons in a mask that lower the clocks."""
    return tuple(name for bit, name in REASONS.items() if mask & bit)


class Nvml:
    """One GPU seen through NVML.

    Attributes:
      missing: why nothing can be read, or "".
    """

    def __init__(self) -> None:
        self.missing = ""
        self._module: ModuleType | None = None
        self._handle: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = _device(pynvml)
            self._module = pynvml
        except ImportError:
            self.missing = "nvidia-ml-py is not installed, so throttling is not known; pip " \
                           "install nvidia-ml-py"
        except Exception as error:  # NVMLError, which only exists where pynvml could be imported
            self.missing = f"NVML cannot be read, so throttling is not known: {error}"

    def reasons(self) -> tuple[str, ...] | None:
        """Why the clocks are lower than they could be now; None if that cannot be read."""
        if self._module is None:
            return None
        name = "nvmlDeviceGetCurrentClocksEventReasons"
        read = getattr(self._module, name, None) or \
            self._module.nvmlDeviceGetCurrentClocksThrottleReasons
        try:
            return decoded(int(read(self._handle)))
        except self._module.NVMLError as error:
            self.missing = f"NVML cannot be read, so throttling is not known: {error}"
            return None

    def clocks(self) -> dict[str, int]:
        """MHz now and at most, degrees Celsius, watts; what can be read of them."""
        if self._module is None:
            return {}
        m, h = self._module, self._handle
        asked = {
            "sm_mhz": lambda: m.nvmlDeviceGetClockInfo(h, m.NVML_CLOCK_SM),
            "sm_mhz_max": lambda: m.nvmlDeviceGetMaxClockInfo(h, m.NVML_CLOCK_SM),
            "memory_mhz": lambda: m.nvmlDeviceGetClockInfo(h, m.NVML_CLOCK_MEM),
            "celsius": lambda: m.nvmlDeviceGetTemperature(h, m.NVML_TEMPERATURE_GPU),
            "watts": lambda: m.nvmlDeviceGetPowerUsage(h) // 1000,
        }
        out = {}
        for name, ask in asked.items():
            try:
                out[name] = int(ask())
            except m.NVMLError:
                continue  # not every GPU tells everything
        return out


def _device(pynvml: Any) -> Any:
    """The first of the devices that CUDA programs see."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if first.startswith(("GPU-", "MIG-")):
        return pynvml.nvmlDeviceGetHandleByUUID(first)
    return pynvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdigit() else 0)
