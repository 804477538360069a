"""The SIMT emulator: right results under every schedule, and faults that show."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulated import emulate

from jaxmono.codegen import headers, host_compiler

Array = np.ndarray[Any, Any]
BF16 = ml_dtypes.bfloat16
GEMM = (Path(__file__).parent / "gemm_layernorm.cu").read_text()


def gemm_source(m: int, k: int, n: int) -> str:
    return f"#define SIZES {m}, {k}, {n}\n{GEMM}"


def gemm_case(m: int, k: int, n: int) -> tuple[list[Array], Array]:
    """Buffers of gemm_layernorm.cu with poisoned output and scratch, and the wanted output."""
    rng = np.random.default_rng(m + k + n)
    x = rng.normal(size=(m, k)).astype(BF16)
    w1 = (rng.normal(size=(k, n)) / np.sqrt(k)).astype(BF16)
    gamma, beta = (rng.normal(size=n).astype(np.float32) for _ in range(2))
    w2 = (rng.normal(size=(n, n)) / np.sqrt(n)).astype(BF16)
    h = x.astype(np.float32) @ w1.astype(np.float32)
    y = (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + 1e-5) * gamma + beta
    want = y.astype(BF16).astype(np.float32) @ w2.astype(np.float32)
    out = np.full((m, n), np.nan, np.float32)
    scratch = np.full(m * n * 6, 0xff, np.uint8)
    return [x, w1, gamma, beta, w2, out, scratch], want


def gemm_is_right(kernel: Any, m: int, k: int, n: int, *, blocks: int, seed: int) -> bool:
    buffers, want = gemm_case(m, k, n)
    error = kernel.error(buffers, blocks=blocks, seed=seed)
    return not error and bool(np.allclose(buffers[5], want, rtol=0, atol=2e-2))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("m", "k", "n"), [(128, 96, 128), (100, 32, 64), (64, 160, 192)])
def test_gemm_layernorm_gemm_under_many_schedules(m: int, k: int, n: int) -> None:
    kernel = emulate(gemm_source(m, k, n))
    # The grid size changes from launch to launch: the barrier's state fits them all.
    for blocks, seed in [(1, 0), (3, 0), (8, 0), (4, 1), (3, 2), (5, 3), (2, 4)]:
        assert gemm_is_right(kernel, m, k, n, blocks=blocks, seed=seed), (blocks, seed)


REMOVALS = {
    "cp_async_wait": ("cp_async_wait<STAGES - 2>();  // TILE LANDED", ""),
    "block barrier after the wait": ("syncthreads();                // TILE VISIBLE", ""),
    "block barrier before the ring is reused": ("syncthreads();  // RING FREE", ""),
    "grid barrier after the first product": ("grid_barrier(&grid);  // H WRITTEN", ""),
    "grid barrier after the norm": ("grid_barrier(&grid);  // Y WRITTEN", ""),
    "one stage too few waited for": ("cp_async_wait<STAGES - 2>", "cp_async_wait<STAGES - 1>"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("what", REMOVALS)
def test_missing_synchronisation_shows(what: str) -> None:
    old, new = REMOVALS[what]
    source = gemm_source(128, 96, 128)
    assert source.count(old) == 1
    kernel = emulate(source.replace(old, new))
    wrong = [seed for seed in range(1, 9)
             if not gemm_is_right(kernel, 128, 96, 128, blocks=2, seed=seed)]
    assert len(wrong) >= 2, wrong


def kernel_source(body: str, buffers: int, *, threads: int = 64, shared: int = 1024,
                  before: str = "") -> str:
    return f"""
#include "jaxmono/numeric.cuh"
#include "jaxmono/flagged.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/sync.cuh"
using namespace jaxmono;
struct Params {{ void* buf[{buffers}]; }};
__device__ GridBarrier grid;
{before}
extern "C" __global__ void test_kernel(const __grid_constant__ Params p) {{
{body}
}}
JAXMONO_EMULATE_MAIN(test_kernel, Params, {buffers}, {threads}, {shared})
"""


FAULTS = {
    "deadlock: no thread can go on. block 0 threads 0-31: syncthreads 0 (32 of 64 threads "
    "arrived); block 0 threads 32-63: has exited": "if (warp_id() == 0) syncthreads();",
    "block 0 threads 1-31: warp_reduce (31 of 32 lanes arrived)":
        "if (thread_id() != 0) warp_reduce(1, [](int a, int b) { return a + b; });",
    "block 1 threads 0-0: grid_barrier; block 1 threads 1-63: syncthreads":
        "if (block_id() != 0) grid_barrier(&grid);",
    "counter_wait": "static uint32_t counter = 0; counter_wait(&counter, 1);",
    "meet at different collectives: syncwarp and, lane 31, shfl":
        "if (lane_id() == 31) shfl_xor(1, 1); else syncwarp();",
    "wrote past its 1024 bytes of shared memory, at byte 1024":
        "dynamic_shared()[1024] = 3;",
    "ldmatrix_x4 row: shared memory offset 8":
        "uint32_t r[4]; ldmatrix_x4(r, dynamic_shared() + 8);",
    "cp_async destination: shared memory offset 1024":
        "cp_async_16(dynamic_shared() + 1024, p.buf[0]);",
    "cp_async source": "cp_async_16(dynamic_shared(), static_cast<char*>(p.buf[0]) + 2);",
    "needs more than 128 KiB of stack":
        "*reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(&emulate::self()) & "
        "~(emulate::STACK_BYTES - 1)) + emulate::CANARY_AT) = 1;",
    "ids are 0..15": "named_barrier(16, 64);",
    "may come to syncthreads in parts: lanes 0 and 16 have not waited at the same places":
        "const auto there = [] { return true; }; if (lane_id() < 16) wait_together(there, \"a\"); "
        "syncthreads();",
    "may come to syncthreads in parts: lanes 0 and 8 have not":  # as often, but elsewhere
        "if (lane_id() < 8) wait_together([] { return true; }, \"a\"); "
        "else wait_together([] { return num_threads() > 0; }, \"b\"); syncthreads();",
    # What lane 16 waits for two others do behind their own wait: on the GPU they may be together.
    "a word": "static int done[4]; int& mine = done[2 * block_id() + warp_id()]; mine = 0; "
        "const int l = lane_id(); const bool both = l == 15 || l == 17; syncwarp(); "
        "if (both || l == 16) wait_together([&] { return both || mine == 2; }, \"a word\"); "
        "mine += both;",
}


@pytest.mark.parametrize("message", FAULTS)
@pytest.mark.parametrize("seed", [0, 5])
def test_faults_are_reported(message: str, seed: int) -> None:
    # All of them in one kernel, chosen by a buffer: one compilation.
    cases = "\n".join(f"  case {i}: {{ {body} break; }}" for i, body in enumerate(FAULTS.values()))
    kernel = emulate(kernel_source(f"""
  switch (*static_cast<const int*>(p.buf[1])) {{
{cases}
  default: grid_barrier(&grid);
  }}""", 2))
    which = list(FAULTS).index(message)
    data = np.zeros(64, np.int64)
    assert message in kernel.error([data, np.array([which], np.int32)], blocks=2, seed=seed)
    # The module is usable again, its barrier too.
    kernel.run([data, np.array([-1], np.int32)], blocks=3, seed=seed)


def test_a_seed_fixes_the_interleaving() -> None:
    kernel = emulate(kernel_source("""
  auto* log = static_cast<uint32_t*>(p.buf[0]);
  auto* next = static_cast<uint32_t*>(p.buf[1]);
  for (int i = 0; i < 4; ++i) {
    log[atom_add_acq_rel_gpu(next, 1)] = block_id() * 64 + thread_id();
    syncwarp();
  }
""", 2))

    def order(seed: int) -> list[int]:
        log = np.zeros(3 * 64 * 4, np.uint32)
        kernel.run([log, np.zeros(1, np.uint32)], blocks=3, seed=seed)
        return log.tolist()

    assert order(7) == order(7)
    assert len({tuple(order(seed)) for seed in range(1, 6)}) == 5


def test_shared_memory_is_poisoned_and_blocks_are_apart() -> None:
    kernel = emulate(kernel_source("""
  auto* out = static_cast<float*>(p.buf[0]);
  auto* shared = reinterpret_cast<float*>(dynamic_shared());
  if (thread_id() == 0) out[block_id()] = shared[9];
  shared[thread_id()] = static_cast<float>(block_id() + thread_id());
  syncthreads();
  out[num_blocks() + block_id() * 64 + thread_id()] = shared[63 - thread_id()];
""", 1))
    out = np.zeros(3 + 3 * 64, np.float32)
    kernel.run([out], blocks=3)
    assert np.isnan(out[:3]).all()
    want = np.arange(3)[:, None] + np.arange(64)[::-1]
    np.testing.assert_array_equal(out[3:].reshape(3, 64), want)


def test_warp_and_block_exchange() -> None:
    kernel = emulate(kernel_source("""
  const int t = thread_id();
  auto* out = static_cast<int64_t*>(p.buf[0]) + t * 8;
  out[0] = shfl_xor<int64_t>(int64_t(t) << 40, 5) >> 40;
  out[1] = shfl_idx<uint8_t>(uint8_t(t), 3);
  out[2] = warp_reduce(First{t, t % 7}, Smaller{}).index;
  out[3] = warp_reduce<8>(t, Sum{});
  out[4] = block_reduce(t, Sum{}, dynamic_shared());
  out[5] = block_reduce(Pair{t, 1.0, t}, Last{}, dynamic_shared()).t;
  out[6] = warp_ballot(t % 3 == 0);
  out[7] = warp_any(t == 40) + 2 * warp_all(t >= 32);
""", 1, threads=96, before="""
struct First { int index, value; };
struct Smaller {
  JM_DEVICE First operator()(First a, First b) const { return b.value < a.value ? b : a; }
};
struct Sum { JM_DEVICE int operator()(int a, int b) const { return a + b; } };
struct Pair { int64_t a; double b; int t; };  // 24 bytes
struct Last { JM_DEVICE Pair operator()(Pair, Pair b) const { return b; } };  // does not commute
"""))
    t = np.arange(96)
    for seed in (0, 1):
        out = np.zeros((96, 8), np.int64)
        kernel.run([out], blocks=1, seed=seed)
        base = t // 32 * 32
        np.testing.assert_array_equal(out[:, 0], t ^ 5)
        np.testing.assert_array_equal(out[:, 1], base + 3)
        np.testing.assert_array_equal(out[:, 2], -(-base // 7) * 7)
        np.testing.assert_array_equal(out[:, 3], t.reshape(-1, 8).sum(1).repeat(8))
        assert (out[:, 4] == t.sum()).all() and (out[:, 5] == 95).all()
        want = [sum(int((b + i) % 3 == 0) << i for i in range(32)) for b in base]
        np.testing.assert_array_equal(out[:, 6], want)
        np.testing.assert_array_equal(out[:, 7], (base == 32) + 2 * (t >= 32))


def test_tensor_core_products_of_all_types() -> None:
    kernel = emulate(kernel_source("""
  const int lane = lane_id(), g = lane / 4, t = lane % 4;
  auto* a16 = reinterpret_cast<bf16*>(dynamic_shared());  // [16][16], then b [8][16] and [16][8]
  for (int i = lane; i < 512; i += 32) a16[i] = static_cast<const bf16*>(p.buf[0])[i];
  syncwarp();
  auto row = [&](int at, int r, int c, int width) { return a16 + at + r * width + c; };
  uint32_t a[4], at[4], b[2], bt[2];
  ldmatrix_x4(a, row(0, lane % 16, lane / 16 * 8, 16));
  ldmatrix_x2(b, row(256, lane % 8, lane / 8 % 2 * 8, 16));
  ldmatrix_x2_trans(bt, row(384, lane % 16, 0, 8));
  ldmatrix_x4_trans(at, row(0, lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8, 16));
  float d[5][4] = {};
  mma_m16n8k16_bf16(d[0], a, b);
  mma_m16n8k16_f16(d[1], a, bt);
  mma_m16n8k16_bf16(d[2], at, b);
  uint32_t a32[4], b32[2];
  const auto* f = static_cast<const float*>(p.buf[1]);  // a [16][8], b [8][8]
  for (int i = 0; i < 4; ++i) a32[i] = to_tf32(f[(g + i % 2 * 8) * 8 + t + i / 2 * 4]);
  for (int i = 0; i < 2; ++i) b32[i] = to_tf32(f[128 + (t + i * 4) * 8 + g]);
  mma_m16n8k8_tf32(d[3], a32, b32);
  mma_m16n8k8_tf32(d[3], a32, b32);
  auto* out = static_cast<float*>(p.buf[2]);
  for (int k = 0; k < 4; ++k)
    for (int e = 0; e < 4; ++e) out[k * 128 + (g + e / 2 * 8) * 8 + 2 * t + e % 2] = d[k][e];
""", 3, threads=32, shared=1024))
    rng = np.random.default_rng(3)
    single = rng.normal(size=192).astype(np.float32)
    # bf16 bits read as f16 must stay finite.
    small = rng.integers(0x3000, 0x4000, 512).astype(np.uint16).view(BF16)
    halves = small.view(np.float16).astype(np.float64)
    out = np.zeros((4, 16, 8), np.float32)
    kernel.run([small, single, out], blocks=1)
    wide = small.astype(np.float64)
    a, b = wide[:256].reshape(16, 16), wide[256:384].reshape(8, 16).T
    np.testing.assert_allclose(out[0], a @ b, rtol=1e-6)
    np.testing.assert_allclose(
        out[1], halves[:256].reshape(16, 16) @ halves[384:].reshape(16, 8), rtol=1e-6)
    np.testing.assert_allclose(out[2], a.T @ b, rtol=1e-6)
    exact = single[:128].reshape(16, 8).astype(np.float64) @ single[128:].reshape(8, 8)
    np.testing.assert_allclose(out[3], 2 * exact, rtol=0, atol=2e-2)
    assert np.abs(out[3] - 2 * exact).max() > 1e-5  # tf32 rounds its operands


def test_counters_and_flagged_values_between_blocks() -> None:
    kernel = emulate(kernel_source("""
  auto* data = static_cast<int*>(p.buf[0]);
  auto* counter = static_cast<uint32_t*>(p.buf[1]);
  auto* slot = static_cast<uint64_t*>(p.buf[2]);
  auto* out = static_cast<int*>(p.buf[3]);
  if (block_id() == 0) {
    for (int t = 0; t < 5; ++t) {
      data[t * 64 + thread_id()] = t * 64 + thread_id();
      counter_signal(counter);
    }
    store<int>(Flagged<int>{slot, 9} + thread_id(), thread_id() * 3);
  } else {
    for (int t = 0; t < 5; ++t) {
      counter_wait(counter, t + 1);
      out[(block_id() - 1) * 64 + thread_id()] += ld_coherent(data + t * 64 + 63 - thread_id());
    }
    out[(block_id() - 1) * 64 + thread_id()] += load<int>(Flagged<int>{slot, 9} + 63 - thread_id());
  }
""", 4))
    for seed in range(4):
        out = np.zeros((2, 64), np.int32)
        data, counter = np.full(5 * 64, 10**6, np.int32), np.zeros(1, np.uint32)
        kernel.run([data, counter, np.zeros(64, np.uint64), out], blocks=3, seed=seed)
        t = 63 - np.arange(64)
        np.testing.assert_array_equal(out, np.broadcast_to(64 * 10 + 5 * t + 3 * t, (2, 64)))


def test_atomics_on_all_cores() -> None:
    kernel = emulate(kernel_source("""
  for (int i = 0; i < 100; ++i) {
    red_add(static_cast<float*>(p.buf[0]), 1.0f);
    red_add(static_cast<int64_t*>(p.buf[1]), int64_t(-2));
    auto* word = static_cast<uint32_t*>(p.buf[2]);
    for (uint32_t old = ld_relaxed_gpu(word), seen;; old = seen) {
      seen = atom_cas(word, old, old + 3);
      if (seen == old) break;
    }
  }
""", 3))
    a, b, c = np.zeros(1, np.float32), np.zeros(1, np.int64), np.zeros(1, np.uint32)
    kernel.run([a, b, c], blocks=6)
    assert (a[0], b[0], c[0]) == (38400, -76800, 115200)


def test_named_barriers_split_a_block() -> None:
    kernel = emulate(kernel_source("""
  auto* shared = reinterpret_cast<int*>(dynamic_shared());
  const int half = thread_id() / 64;
  for (int i = 0; i <= 5 * half; ++i) {  // the halves do not meet
    shared[thread_id()] = thread_id() + i;
    named_barrier(1 + half, 64);
    static_cast<int*>(p.buf[0])[thread_id()] = shared[thread_id() ^ 63];
    named_barrier(1 + half, 64);
  }
""", 1, threads=128))
    for seed in range(3):
        out = np.zeros(128, np.int32)
        kernel.run([out], blocks=1, seed=seed)
        np.testing.assert_array_equal(out, (np.arange(128) ^ 63) + np.repeat([0, 5], 64))


TEAM = """
#define JM_TEAM 64
""" + kernel_source("""
  auto* out = static_cast<int*>(p.buf[0]);
  auto* ready = reinterpret_cast<uint64_t*>(dynamic_shared());
  auto* slots = reinterpret_cast<int*>(dynamic_shared() + 64);
  const int fault = *static_cast<const int*>(p.buf[1]);
  if (thread_id() == 0) {
    mbarrier_init(ready, 1);
    mbarrier_fence_init();
  }
  if (thread_id() != 70 || fault != 1) sync_all_threads();
  if (thread_id() >= 64) {  // two warps help, each for as long as it likes
    if (fault == 2) syncthreads();
    if (warp_id() == 3) return;
    slots[32 + lane_id()] = 1000 + lane_id();
    syncwarp();
    if (thread_id() == 64) mbarrier_arrive(ready);
    return;
  }
  if (fault == 3) named_barrier(1, 64);
  if (warp_id() == 0) slots[31 - lane_id()] = lane_id();
  syncthreads();
  mbarrier_wait(ready, 0);
  const int sum = block_reduce(slots[thread_id()], Sum{}, dynamic_shared() + 512);
  out[block_id() * 64 + thread_id()] = sum;
  grid_barrier(&grid);
  static_cast<int*>(p.buf[2])[block_id() * 64 + thread_id()] =
      ld_coherent(out + (block_id() + 1) % num_blocks() * 64 + thread_id());
""", 3, threads=128, before="""
#include "jaxmono/ptx_mbarrier.cuh"
struct Sum { JM_DEVICE int operator()(int a, int b) const { return a + b; } };
""")


def test_a_team_of_some_threads() -> None:
    kernel = emulate(TEAM)
    for seed in range(6):
        out, after = np.zeros((3, 64), np.int32), np.zeros((3, 64), np.int32)
        kernel.run([out, np.zeros(1, np.int32), after], blocks=3, seed=seed)
        assert (out == 32000 + 2 * np.arange(32).sum()).all() and (out == after).all()


@pytest.mark.parametrize(("fault", "message"), [
    (1, "block 0 threads 0-69: sync_all_threads 0 (127 of 128 threads arrived); block 0 threads "
        "70-70: syncwarp (1 of 32 lanes arrived); block 0 threads 71-127: sync_all_threads"),
    (2, "it is for the first 64 threads (JM_TEAM)"),
    (3, "named_barrier 1 is that of syncthreads")])
def test_faults_of_a_team(fault: int, message: str) -> None:
    out = np.zeros(64, np.int32)
    error = emulate(TEAM).error([out, np.array([fault], np.int32), out.copy()], blocks=1, seed=0)
    assert message in error


def test_static_shared_memory_does_not_compile() -> None:
    source = headers.bundle(kernel_source("  __shared__ float x[4];", 1))
    with pytest.raises(host_compiler.HostCompileError, match="__shared__"):
        host_compiler.compile_host(source)


def test_a_missing_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -x")
    with pytest.raises(host_compiler.MissingCompilerError, match="CXX='no-such-compiler -x'"):
        host_compiler.compile_host("")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(host_compiler.MissingCompilerError, match=r"apt-get install g\+\+"):
        host_compiler.compile_host("")


def test_the_runtime_is_compiled_once_per_cache(tmp_path: Path) -> None:
    source = headers.bundle(kernel_source("", 1))
    host_compiler.compile_host(source, cache_dir=tmp_path)
    (kept,) = tmp_path.glob("emulator-*.o")
    stamp = kept.stat().st_mtime_ns
    host_compiler.compile_host(source, cache_dir=tmp_path)
    assert [p.stat().st_mtime_ns for p in tmp_path.iterdir()] == [stamp]


def test_headers_are_precompiled_after_some_kernels_of_the_same(
        monkeypatch: pytest.MonkeyPatch) -> None:
    made = host_compiler._Precompiled()
    monkeypatch.setattr(host_compiler, "_PRECOMPILED", made)
    for n in range(made.AFTER + 2):
        out = np.zeros(1, np.int32)
        emulate(f"// {n}\n" + kernel_source(f"  ((int*)p.buf[0])[0] = {n} + 7;", 1)).run([out])
        assert out[0] == n + 7
        assert len(made._made) == (n >= made.AFTER)
    (header,) = made._made.values()
    assert header is not None and header.with_name(f"{header.name}.gch").stat().st_size > 1 << 20
    broken = headers.bundle(kernel_source("  not_declared();", 1))
    with pytest.raises(host_compiler.HostCompileError, match="not_declared"):
        host_compiler.compile_host(broken)
    other = broken.replace("namespace jaxmono", "namespace ) jaxmono", 1)
    for _ in range(made.AFTER + 2):
        with pytest.raises(host_compiler.HostCompileError, match="expected"):
            host_compiler.compile_host(other)
    assert list(made._made.values()) == [header, None]


def test_bundle_takes_each_header_once_and_refuses_unknown_ones() -> None:
    text = headers.bundle('#include "jaxmono/sync.cuh"\n#include "jaxmono/warp.cuh"\nint x;\n')
    assert text.count("==== jaxmono/warp.cuh") == text.count("==== jaxmono/types.cuh") == 1
    assert '#include "jaxmono/' not in text and "#pragma once" not in text
    assert text.index("struct bf16") < text.index("struct GridBarrier {")
    with pytest.raises(headers.HeaderError, match=r"no such device header; there are .*warp\.cuh"):
        headers.bundle('#include "jaxmono/wrap.cuh"\n')


@pytest.mark.parametrize(("offset", "signals"), [(4, (signal.SIGILL, signal.SIGTRAP)), (16, (0,))])
def test_misaligned_vectors_trap(offset: int, signals: tuple[int, ...]) -> None:
    """As on a GPU, where they end the process's context; in a process of their own."""
    body = f"float* x = static_cast<float*>(p.buf[0]) + {offset} / 4;\n" \
           "store<float, 4>(x, load<float, 4>(x));"
    code = f"""
import numpy as np
from aligned import trap_misaligned
trap_misaligned()
from emulated import emulate
emulate({kernel_source(body, 1)!r}).run([np.zeros(64, np.float32)])
"""
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path},
                          capture_output=True, text=True, check=False)
    assert -done.returncode in signals, done.stderr
