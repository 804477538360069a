"""Hopper's instructions in the emulator: right results under every schedule, faults that show."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulated import Emulated, emulate

from jaxmono.codegen import headers, nvrtc

Array = np.ndarray[Any, Any]
BF16 = ml_dtypes.bfloat16
DTYPES = {"bf16": BF16, "f16": np.float16}
HERE = Path(__file__).parent

# ---- single products -----------------------------------------------------------------------------

K = 128
CASES = [  # dtype, A and B stored with rows neighbouring (MN) instead of k, N
    ("bf16", False, False, 48), ("bf16", False, True, 80), ("bf16", True, False, 144),
    ("bf16", True, True, 16), ("f16", False, False, 176), ("f16", False, True, 32),
    ("f16", True, False, 64), ("f16", True, True, 112), ("bf16", False, True, 256)]


def products_source() -> str:
    cases = " ".join(f"CASE({i}, {t}, {str(a).lower()}, {str(b).lower()}, {n})"
                     for i, (t, a, b, n) in enumerate(CASES))
    return f"#define CASES {cases}\n" + (HERE / "wgmma_products.cu").read_text()


def test_products_of_all_layouts() -> None:
    kernel = emulate(products_source() + "JAXMONO_EMULATE_MAIN(test_kernel, Params, 3, 128, 81920)")
    rng = np.random.default_rng(0)
    a = np.zeros((len(CASES), 64 * K), np.uint16)
    b = np.zeros((len(CASES), 256 * K), np.uint16)
    want = []
    for i, (t, a_mn, b_mn, n) in enumerate(CASES):
        x = rng.normal(size=(64, K)).astype(DTYPES[t])
        y = rng.normal(size=(n, K)).astype(DTYPES[t])
        a[i] = np.ravel(x.T if a_mn else x).view(np.uint16)
        b[i, :n * K] = np.ravel(y.T if b_mn else y).view(np.uint16)
        want.append(x.astype(np.float64) @ y.T.astype(np.float64) + 0.5)
    for seed in range(6):
        out = np.full((len(CASES), 64 * 256), np.nan, np.float32)
        kernel.run([a, b, out], blocks=len(CASES), seed=seed)
        for case, y, w in zip(CASES, out, want, strict=True):
            got = y[:w.size].reshape(w.shape)
            np.testing.assert_allclose(got, w, rtol=0, atol=1e-3, err_msg=f"{case} seed {seed}")
            assert np.isnan(y[w.size:]).all()


# ---- a warp-specialised pipeline -----------------------------------------------------------------

PIPELINE = (HERE / "wgmma_pipeline.cu").read_text()
_STEP = re.compile(r"^( *)(.*;)  // \[(.*)\]$", re.MULTILINE)
STEPS = {m[3]: m[2] for m in _STEP.finditer(PIPELINE)}
REPLACED = {  # in place of a step
    "consumer waits for the tile": "mbarrier_wait(&roles->full[at.slot], at.parity ^ 1);",
    "producer waits for a free slot": "mbarrier_wait(&roles->empty[at.slot], at.parity);",
    "producer says when the left tile has landed": "mbarrier_arrive(&roles->full[at.slot]);",
    "consumer waits for the products of the tile before": "wgmma_wait<2>();",
    "consumer waits for the last products": "wgmma_wait<1>();",
    "barriers are initialised": "syncwarp();",
    "the team meets the producers that load h": "syncthreads();"}
TASKS, WIDTH = 3, 192


@lru_cache(maxsize=1)
def pipeline() -> Emulated:
    """The kernel with all its mutants in one compilation. ``change`` i leaves out step i; from
    len(STEPS) on they are the replacements."""
    def choose(m: re.Match[str]) -> str:
        code = f"if (change != {list(STEPS).index(m[3])}) {{ {m[2]} }}"
        if m[3] in REPLACED:
            number = len(STEPS) + list(REPLACED).index(m[3])
            code = f"if (change == {number}) {{ {REPLACED[m[3]]} }} else {code}"
        return m[1] + code

    source = _STEP.sub(choose, PIPELINE)
    return emulate(f"{source}JAXMONO_EMULATE_MAIN(test_kernel, Params, 7, 384, {1024 + 2 * 32768})")


@lru_cache(maxsize=1)
def pipeline_case() -> tuple[list[Array], Array]:
    """a, b, c and the wanted y."""
    rng = np.random.default_rng(5)
    a = rng.normal(size=(TASKS * 128, WIDTH)).astype(BF16)
    b = (rng.normal(size=(WIDTH, 128)) / 14).astype(BF16)
    c = (rng.normal(size=(128, 128)) / 11).astype(BF16)
    h = (a.astype(np.float32) @ b.astype(np.float32)).astype(BF16)
    return [a, b, c], h.astype(np.float32) @ c.astype(np.float32)


def run_pipeline(*, blocks: int, seed: int, change: int = -1) -> str:
    """"", what the emulator reported, or "wrong result"."""
    operands, want = pipeline_case()
    h = np.full((TASKS * 128, 128), np.nan, BF16)
    y = np.full((TASKS * 128, 128), np.nan, np.float32)
    error = pipeline().error([*operands, h, y, np.array([TASKS, WIDTH], np.int32),
                              np.array([change], np.int32)], blocks=blocks, seed=seed)
    return error or ("" if np.allclose(y, want, rtol=0, atol=3e-2) else "wrong result")


def test_pipeline_under_many_schedules() -> None:
    for blocks, seed in [(1, 0), (2, 0), (3, 0), *((1 + s % 3, s) for s in range(1, 13))]:
        assert run_pipeline(blocks=blocks, seed=seed) == "", (blocks, seed)


CHANGES = [*(f"without: {s}" for s in STEPS), *(f"otherwise: {s}" for s in REPLACED)]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("change", range(len(CHANGES)), ids=CHANGES)
def test_a_changed_step_shows(change: int) -> None:
    outcomes = [run_pipeline(blocks=2, seed=seed, change=change) for seed in range(1, 13)]
    assert sum(o != "" for o in outcomes) >= 4, outcomes


def test_a_deadlock_names_barriers_and_their_arrivals() -> None:
    step = list(STEPS).index("consumer frees the slot before")
    assert run_pipeline(blocks=1, seed=0, change=step) == (
        "deadlock: no thread can go on. "
        "block 0 threads 0-255: mbarrier_wait for parity 1 at shared memory offset 0 "
        "(0 of 256 arrivals); "
        "block 0 threads 256-383: mbarrier_wait for parity 0 at shared memory offset 16 "
        "(0 of 2 arrivals)")


# ---- faults --------------------------------------------------------------------------------------

FEWER = "its warpgroup has fewer than 4 warps"
FAULTS = {
    "mbarrier_wait: there is no mbarrier at shared memory offset 64 of block 1 (thread":
        "mbarrier_wait(bar + 8, 0);",
    "mbarrier_init: shared memory offset 4 ":
        "mbarrier_init(reinterpret_cast<uint64_t*>(dynamic_shared() + 4), 1);",
    "mbarrier_init for 0 arrivals": "mbarrier_init(bar, 0);",
    "mbarrier_wait for parity 2": "mbarrier_init(bar, 1); mbarrier_wait(bar, 2);",
    "threads 32-63: mbarrier_wait for parity 0 at shared memory offset 0 (31 of 32 arrivals); "
    "block 1 threads 64-159: has exited":
        "if (thread_id() == 0) mbarrier_init(bar, 32);"
        "named_barrier(2, 128);"
        "if (thread_id() < 31) mbarrier_arrive(bar);"
        "else if (warp_id() == 1) mbarrier_wait(bar, 0);",
    "without a wgmma_fence since the kernel's start": "wgmma<bf16, false, false>(d, a, a);",
    "without a wgmma_fence since its wgmma_commit or wgmma_wait":
        "run(a, a); wgmma<bf16, false, false>(d, a, a);",
    "ends with a wgmma in flight":
        "wgmma_fence(), wgmma<bf16, false, false>(d, a, a), wgmma_wait<0>();",
    FEWER: "if (warp_id() == 4) run(a, a);",
    "have different operands": "run(a + (lane_id() == 3), a);",
    "the warps of warpgroup 0 of block 1 issue different wgmmas":
        "run(a + 2 * (warp_id() == 2), a);",
    "threads 0-95: wgmma_wait, for other warps of the warpgroup": "if (warp_id() < 3) run(a, a);",
    "offset 16, lead 16, stride 1024: it does not begin at k % 16": "run(a + 1, a);",
    "offset 32, lead 16, stride 1024: it does not begin at a panel's first row":
        "wgmma_fence(); wgmma<bf16, false, true>(d, a, a + 2);",
    "it ends outside shared memory": "run(a + 448, a);",
    "its swizzle is not that of 128 or 64 bytes": "run(a, a ^ 1ull << 62);",
}


@pytest.mark.parametrize("message", FAULTS)
@pytest.mark.parametrize("seed", [0, 5])
def test_faults_are_reported(message: str, seed: int) -> None:
    cases = "\n".join(f"  case {i}: {{ {body} break; }}" for i, body in enumerate(FAULTS.values()))
    kernel = emulate(f"""
#include "jaxmono/ptx.cuh"
#include "jaxmono/ptx_mbarrier.cuh"
#include "jaxmono/ptx_wgmma.cuh"
#include "jaxmono/warp.cuh"
using namespace jaxmono;
struct Params {{ void* buf[1]; }};
extern "C" __global__ void test_kernel(const __grid_constant__ Params p) {{
  const int which = *static_cast<const int*>(p.buf[0]);
  // The fifth warp is there for one case only.
  if (block_id() == 0 || (warp_id() == 4 && which != {list(FAULTS).index(FEWER)})) return;
  auto* bar = reinterpret_cast<uint64_t*>(dynamic_shared());
  const uint64_t a = wgmma_descriptor(dynamic_shared(), 16, 1024);
  float d[2][4] = {{}};
  const auto run = [&](uint64_t a, uint64_t b) {{
    wgmma_fence(), wgmma<bf16, false, false>(d, a, b), wgmma_commit(), wgmma_wait<0>();
  }};
  switch (which) {{
{cases}
  }}
}}
JAXMONO_EMULATE_MAIN(test_kernel, Params, 1, 160, 8192)
""")
    which = np.array([list(FAULTS).index(message)], np.int32)
    assert message in kernel.error([which], blocks=2, seed=seed)


# ---- the GPU's compiler --------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("source", [PIPELINE, products_source()], ids=["pipeline", "products"])
def test_the_same_sources_compile_for_the_gpu(source: str) -> None:
    binary = nvrtc.compile_cuda(headers.bundle(source), "sm_90a")
    assert (binary.spill_stores, binary.spill_loads) == (0, 0)
    assert "wgmma" not in binary.log, binary.log  # "... instructions are serialized due to ..."


EARLY = """
#include "jaxmono/ptx.cuh"
#include "jaxmono/ptx_wgmma.cuh"
using namespace jaxmono;
extern "C" __global__ void test_kernel(float* out, uint64_t a, uint64_t b) {
  float d[2][4] = {};
  wgmma_fence(), wgmma<bf16, false, false>(d, a, b), wgmma_commit();
  CHANGE
  wgmma_fence(), wgmma<bf16, false, false>(d, b, a), wgmma_commit(), wgmma_wait<0>();
  for (int i = 0; i < 8; ++i) out[threadIdx.x * 8 + i] = d[i / 4][i % 4];
}
"""


def test_the_log_tells_of_products_that_wait() -> None:
    """The tests above look for nothing else: sums that are touched while products are in flight."""
    def log(change: str) -> str:
        return nvrtc.compile_cuda(headers.bundle(EARLY.replace("CHANGE", change)), "sm_90a").log

    assert "wgmma" not in log("")
    assert "wgmma" in log("for (auto& row : d) for (auto& x : row) x *= 2;")


@pytest.mark.parametrize("arch", ["sm_80", "sm_100a"])
def test_the_headers_can_be_included_for_other_targets(arch: str) -> None:
    nvrtc.compile_cuda(headers.bundle("""
#include "jaxmono/ptx_mbarrier.cuh"
#include "jaxmono/ptx_wgmma.cuh"
extern "C" __global__ void kernel(int* x) { *x = 1; }
"""), arch)
