"""What the harness measures: something that starts calls on the GPU and waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Facts:
    """What a system tells of a program that it has compiled; the names are those of `Row`."""

    variant: str | None = None
    trace_s: float | None = None
    compile_s: float | None = None
    tune_s: float | None = None
    kernels: float | None = None
    stages: int | None = None
    barriers: int | None = None
    scratch_bytes: int | None = None
    peak_bytes: int | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    status: str = "ok"
    reason: str = ""
    notes: str = ""


class Running(Protocol):
    """A compiled and warmed-up program with its data on the device.

    All of it runs on one stream, in the order of the calls.
    """

    label: str
    """For people, "torch_compile" say."""

    facts: Facts

    def start(self) -> Any:
        """Starts one call with the next of the rotated inputs, without waiting for it.

        Returns:
          a token for `wait`. Holding tokens must not change what later calls do.
        """
        ...

    def wait(self, token: Any) -> None:
        """Returns when the call (and all before it) is done on the device."""
        ...

    def delay(self, milliseconds: float) -> Any:
        """Starts at least that much other work on this stream, with few kernels and the same ones
        for the same time, without waiting; returns a token for `wait`.

        Calls that are started next queue up behind it, so the host is ahead of the device.
        """
        ...

    def close(self) -> None:
        """Lets go of all device memory; the object is not used afterwards."""
        ...
