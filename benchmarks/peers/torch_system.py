"""Torch peers compiled and running, for the harness: `torch.compile` or eager in a CUDA graph."""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.peers.peer import PeerFailed, TorchPeer
from benchmarks.running import Facts

if TYPE_CHECKING:
    import torch

How = Literal["torch_compile", "torch_cudagraph"]
HOWS: tuple[How, ...] = ("torch_compile", "torch_cudagraph")

_WARM_UP = 4
"""Calls before measuring: reduce-overhead compiles in the first, runs in a pool of its own in the
second and records a CUDA graph in the third."""

_CYCLES_PER_MS = 2_000_000
"""Of `torch.cuda._sleep`, at the clock of the fastest of today's GPUs (2 GHz)."""


class TorchRunning:
    """A peer behind the protocol `benchmarks.running.Running`, on the stream that was current when
    it was made. Must be used in the thread that made it: torch keeps its CUDA graphs per thread.
    """

    def __init__(self, label: str, call: Callable[..., Any], sets: Sequence[tuple[Any, ...]], *,
                 training: bool, device: str) -> None:
        self.label = label
        self.facts = Facts()
        self._call: Callable[..., Any] | None = call
        self._sets: list[tuple[Any, ...]] = list(sets)
        self._turn = 0
        self._training = training
        self._cuda = device.startswith("cuda")

    def start(self) -> Any:
        """Starts one call with the next inputs; the token is an event behind it."""
        import torch

        if self._call is None:
            raise ValueError(f"{self.label} is closed")
        inputs = self._sets[self._turn % len(self._sets)]
        self._turn += 1
        with nullcontext() if self._training else torch.no_grad():
            self._call(*inputs)
        return self._event()

    def wait(self, token: Any) -> None:
        """Returns when the call of that token is done."""
        if token is not None:
            token.synchronize()

    def delay(self, milliseconds: float) -> Any:
        """One kernel that spins, on this stream."""
        import torch

        if not self._cuda:
            return None
        torch.cuda._sleep(int(milliseconds * _CYCLES_PER_MS))
        return self._event()

    def close(self) -> None:
        """Frees graphs, weights and caches, and what torch compiled."""
        import torch

        self._call = None
        self._sets = []
        torch._dynamo.reset()
        gc.collect()
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def _event(self) -> Any:
        if not self._cuda:
            return None
        import torch

        event = torch.cuda.Event()
        event.record()
        return event


def prepare(peer: TorchPeer, how: How, *, seeds: Sequence[int]) -> TorchRunning:
    """Compiles or captures a peer, warms it up, and makes one set of inputs for each seed.

    The inputs of a CUDA graph stand at fixed addresses, so a call copies its inputs there first,
    as a user's would (`torch.compile` does the same on its own).

    Args:
      how: "torch_compile" is ``torch.compile(mode="reduce-overhead")``, torch's setting for
        latency, which runs its kernels in CUDA graphs; "torch_cudagraph" the eager kernels in one
        `torch.cuda.CUDAGraph`. Without a GPU the first is traced but not compiled.

    Raises:
      PeerFailed: it cannot be compiled, captured or run; says why.
      ValueError: ``how`` or ``seeds``.
    """
    import torch

    if how not in HOWS:
        raise ValueError(f"how={how!r} is none of {', '.join(HOWS)}")
    if not seeds:
        raise ValueError("seeds is empty: give one for each set of inputs")
    # What XLA does by default on a GPU, and what torch's own benchmarks set.
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    try:
        with nullcontext() if peer.training else torch.no_grad():
            sets = [peer.inputs(seed) for seed in seeds]
            device = str(sets[0][0].device)
            if device.startswith("cuda"):
                torch.cuda.reset_peak_memory_stats()
            make = _compiled if how == "torch_compile" else _captured
            start = time.perf_counter()
            call, variant = make(peer, sets, device)
            seconds = time.perf_counter() - start
        running = TorchRunning(how, call, sets, training=peer.training, device=device)
        for _ in range(_WARM_UP):
            running.wait(running.start())
    except PeerFailed:
        raise
    except Exception as error:
        raise PeerFailed(short_reason(error)) from error
    peak = torch.cuda.max_memory_allocated() if device.startswith("cuda") else None
    running.facts = Facts(variant=variant, compile_s=None if _was_compiled(how) else seconds,
                          peak_bytes=peak,
                          notes=_skipped_graphs() if how == "torch_compile" else "")
    return running


def _compiled(peer: TorchPeer, sets: Sequence[tuple[Any, ...]], device: str,
              ) -> tuple[Callable[..., Any], str]:
    import torch

    if peer.no_compile:
        raise PeerFailed(f"not compiled: {peer.no_compile}")

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    cuda = device.startswith("cuda")
    how: dict[str, Any] = {"mode": "reduce-overhead"} if cuda else {"backend": "eager"}
    if peer.compiled is None:
        compiled = torch.compile(peer.__call__, dynamic=False, **how)
    else:
        compiled = functools.partial(peer.compiled, peer.module)

    def call(*inputs: torch.Tensor) -> None:
        # The results of the call before may be overwritten from here on.
        torch.compiler.cudagraph_mark_step_begin()
        compiled(*inputs)

    for k in range(_WARM_UP):
        call(*sets[k % len(sets)])
    if cuda:
        torch.cuda.synchronize()
    return call, "reduce-overhead" if cuda else "backend=eager"


def _captured(peer: TorchPeer, sets: Sequence[tuple[Any, ...]], device: str,
              ) -> tuple[Callable[..., Any], str]:
    import torch

    if not device.startswith("cuda"):
        raise PeerFailed("needs a CUDA device")
    if peer.no_graph:
        raise PeerFailed(f"no CUDA graph: {peer.no_graph}")
    static = [tensor.clone() for tensor in sets[0]]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries take their workspaces outside of the capture
        for _ in range(_WARM_UP):
            peer(*static)
    torch.cuda.current_stream().wait_stream(side)
    if peer.training:
        for weight in peer.module.parameters():
            weight.grad = None  # gradients are made anew, inside the graph's memory
    graph = torch.cuda.CUDAGraph()
    # JAX's threads may allocate meanwhile, which must not spoil the capture.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        kept = peer(*static)

    def call(*inputs: torch.Tensor) -> Any:
        torch._foreach_copy_(static, list(inputs))
        graph.replay()
        return kept

    return call, "eager kernels, one graph"


def _was_compiled(how: How) -> bool:
    """Whether Inductor found the program in its cache on disk (``--cache_dir``): what that took is
    no compile time."""
    import torch

    counters = torch._dynamo.utils.counters
    return how == "torch_compile" and bool(counters["inductor"]["fxgraph_cache_hit"]
                                           or counters["aot_autograd"]["autograd_cache_hit"])


def _skipped_graphs() -> str:
    """What kept torch.compile from being one CUDA graph, or ""."""
    import torch

    skips = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    told = [f"{skips} of its graphs without CUDA graphs"] if skips else []
    return "; ".join(told + ([f"{breaks} graph breaks"] if breaks else []))


def short_reason(error: BaseException) -> str:
    """Type and first line with content of an error, at most 200 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:200]
