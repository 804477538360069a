"""NVRTC: hand-written device code compiles, reports its resources, and fails clearly."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pytest

from benchmarks import ahead, select
from jaxmono import CompileError
from jaxmono.codegen import headers, nvrtc, nvrtc_child

GEMM = headers.bundle((Path(__file__).parent / "gemm_layernorm.cu").read_text())


@pytest.mark.sampled(5)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_gemm_compiles_without_spills(arch: str) -> None:
    binary = nvrtc.compile_cuda(GEMM, arch)
    assert binary.cubin.startswith(b"\x7fELF") and b"test_kernel" in binary.cubin
    assert 32 <= binary.registers <= 255
    assert (binary.spill_stores, binary.spill_loads, binary.static_shared) == (0, 0, 0)
    assert 0 < binary.seconds < 60


def test_over_all_cpus_with_the_same_report(capfd: pytest.CaptureFixture[str]) -> None:
    whole, split = (nvrtc.compile_cuda(GEMM, "sm_90a", split=s) for s in (False, True))
    assert b"test_kernel" in split.cubin
    assert (split.spill_stores, split.spill_loads, split.static_shared) == (0, 0, 0)
    assert 32 <= split.registers <= 255 and "registers" in split.log and whole.log
    assert "".join(capfd.readouterr()) == ""


def test_products_that_wait_for_each_other_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """ptxas says so of each function; of registers that it moves it also has notes of that kind."""
    log = ("ptxas info    : (C7519) warpgroup.arrive is injected in around line 6295 by compiler\n"
           "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are "
           "serialized due to insufficient register resources in the function 'f'\n"
           "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
           "serialized due to the presence of Extern calls in the function 'g'\n")
    monkeypatch.setattr(nvrtc, "_apart", lambda *_: ("done", log, b"cubin"))
    assert nvrtc.compile_cuda(SMALL, "sm_90a", split=True).serialized == 2
    monkeypatch.setattr(nvrtc, "_apart", lambda *_: ("done", log.splitlines()[0], b"cubin"))
    assert nvrtc.compile_cuda(SMALL, "sm_90a", split=True).serialized == 0


SMALL = 'extern "C" __global__ void f(int* p) { *p = 1; }'
ABORT = "os.write(2, b'(C7600) Register allocation failed'); os.abort()"


def child(monkeypatch: pytest.MonkeyPatch, folder: Path, before: str) -> None:
    """Lets a process of NVRTC do something before it answers."""
    text = Path(nvrtc_child.__file__).read_text()
    (folder / "child.py").write_text(text.replace("def main() -> None:", "def main() -> None:\n    "
                                                  + before.replace("\n", "\n    ")))
    monkeypatch.setattr(nvrtc_child, "__file__", str(folder / "child.py"))


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The options of what is compiled here from now on."""
    seen: list[tuple[str, ...]] = []
    real = nvrtc_child.compile_with

    def spy(*args: Any) -> Any:
        seen.append(args[-1])
        return real(*args)

    monkeypatch.setattr(nvrtc_child, "compile_with", spy)
    return seen


def test_over_all_cpus_is_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    here = in_this_process(monkeypatch)
    assert nvrtc.compile_cuda(SMALL, "sm_90a", split=True).cubin.startswith(b"\x7fELF")
    assert here == []
    with pytest.raises(nvrtc.NvrtcError, match="sm_12345"):
        nvrtc.compile_cuda(SMALL, "sm_12345", split=True)
    with pytest.raises(nvrtc.NvrtcError, match=r"bad\.cu\(1\)") as caught:
        nvrtc.compile_cuda("__global__ void f() { undefined_name(); }", "sm_90a", name="bad.cu",
                           split=True)
    assert "undefined_name" in caught.value.log and here == []


def test_what_ends_the_process_over_all_cpus_is_tried_over_one(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """NVRTC 13.0 aborts where ptxas finds no registers, but only over all CPUs."""
    child(monkeypatch, tmp_path, "line = sys.stdin.buffer.readline()\n"
          f"if b'split-compile' in line:\n    {ABORT}\n"
          "import io, types; sys.stdin = types.SimpleNamespace(buffer=io.BytesIO(line))\n")
    here = in_this_process(monkeypatch)
    with caplog.at_level("INFO", "jaxmono.codegen"):
        assert nvrtc.compile_cuda(SMALL, "sm_90a", split=True).cubin
    assert "signal SIGABRT" in caplog.text and "C7600" in caplog.text and here == []


def test_a_process_that_always_ends_is_an_error(monkeypatch: pytest.MonkeyPatch,
                                                tmp_path: Path) -> None:
    child(monkeypatch, tmp_path, ABORT)
    with pytest.raises(nvrtc.NvrtcError, match=r"signal SIGABRT.*C7600") as caught:
        nvrtc.compile_cuda(SMALL, "sm_90a", split=True)
    assert "C7600" in caught.value.log


def test_a_process_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch,
                                                tmp_path: Path) -> None:
    """The limit is for both tries; nothing is compiled in this process instead."""
    pids = tmp_path / "pids"
    child(monkeypatch, tmp_path, f"import time\nwith open({str(pids)!r}, 'a') as file:\n"
          "    file.write(str(os.getpid()) + chr(10))\n"
          f"if b'split-compile' in sys.stdin.buffer.readline():\n    time.sleep(0.5); {ABORT}\n"
          "time.sleep(60)\n")
    here = in_this_process(monkeypatch)
    begin = time.monotonic()
    with pytest.raises(nvrtc.NvrtcError, match=r"longer than 2 s.*JAXMONO_COMPILE_SECONDS"):
        nvrtc.compile_cuda(SMALL, "sm_90a", split=True, seconds=2)
    assert 1.9 < time.monotonic() - begin < 3.9 and here == []
    started = pids.read_text().split()
    assert len(set(started)) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)


def test_the_setting_limits_a_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAXMONO_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("JAXMONO_COMPILE_SECONDS", "1")
    child(monkeypatch, tmp_path, "import time\ntime.sleep(60)\n")
    (case,) = select.cases(["bert_base"], ["1"], ["bf16"], tiny=True)
    with pytest.raises(CompileError, match="NVRTC took longer than 1 s"):
        ahead.prepare(case, "monolithic", ahead.gpu_facts("NVIDIA H200"))


def test_what_libraries_print_does_not_reach_the_answer(monkeypatch: pytest.MonkeyPatch,
                                                        tmp_path: Path) -> None:
    child(monkeypatch, tmp_path, "asked = importlib.import_module\n"
          "importlib.import_module = lambda name: os.write(1, b'chatter') and asked(name)\n")
    made = nvrtc.compile_cuda(SMALL, "sm_90a", split=True)
    assert made.cubin.startswith(b"\x7fELF") and "chatter" in made.log


def test_what_python_prints_when_it_begins_is_no_answer(monkeypatch: pytest.MonkeyPatch,
                                                        tmp_path: Path) -> None:
    """A sitecustomize, a wrapper around Python; and a path that is no text, which Python skips."""
    child(monkeypatch, tmp_path, "os.write(1, b'hello\\n')")
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path, b"/tmp"])
    here = in_this_process(monkeypatch)
    assert nvrtc.compile_cuda(SMALL, "sm_90a", split=True).cubin.startswith(b"\x7fELF")
    assert here == []


@pytest.mark.parametrize(("executable", "level", "said"), [
    ("", "INFO", "no Python"), ("/usr/bin/blender", "INFO", "no Python"),
    ("/usr/bin/python_app", "INFO", "no Python"),
    (None, "INFO", "no Python"), ("/nowhere/python3", "WARNING", "no other one can be started")])
def test_without_another_process_it_is_this_one(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, executable: str | None,
        level: str, said: str) -> None:
    """Over one CPU then: an abort would end the user's program."""
    monkeypatch.setattr(sys, "executable", executable)
    here = in_this_process(monkeypatch)
    with caplog.at_level("INFO", "jaxmono.codegen"):
        assert nvrtc.compile_cuda(SMALL, "sm_90a", split=True).cubin
    assert [(r.levelname, said in r.getMessage()) for r in caplog.records] == [(level, True)]
    assert len(here) == 1 and not any("split" in o for o in here[0])


@pytest.mark.parametrize("before", ["return", "raise ImportError('cuda')"])
def test_a_process_without_an_answer_leaves_it_to_this_one(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture,
        before: str) -> None:
    child(monkeypatch, tmp_path, before)
    here = in_this_process(monkeypatch)
    assert nvrtc.compile_cuda(SMALL, "sm_90a", split=True).cubin
    assert "the other one failed" in caplog.text and len(here) == 1


def test_another_version_is_not_asked(monkeypatch: pytest.MonkeyPatch,
                                      caplog: pytest.LogCaptureFixture) -> None:
    """Kernels are kept under the version that this process has."""
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: "99.0")
    here = in_this_process(monkeypatch)
    assert nvrtc.compile_cuda(SMALL, "sm_90a", split=True).cubin
    assert "99.0" in caplog.text and len(here) == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_100a"])
def test_every_wrapper_compiles(arch: str) -> None:
    """Templates are only checked where they are used: use each, at each size."""
    loads = "\n".join(
        f"  {st}(static_cast<{t}*>(p.buf[1]), {ld}(static_cast<const {t}*>(p.buf[0])));"
        for t in ("uint8_t", "bf16", "float", "double", "Bits128")
        for ld, st in [("ld_global", "st_global"), ("ld_nc", "st_stream"),
                       ("ld_stream", "st_global"), ("ld_coherent", "st_global")])
    atomics = "\n".join(f"  red_add(static_cast<{t}*>(p.buf[1]), static_cast<{t}>(1));"
                        for t in ("float", "double", "int32_t", "uint64_t"))
    binary = nvrtc.compile_cuda(headers.bundle(f"""
#include "jaxmono/flagged.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/sync.cuh"
using namespace jaxmono;
struct Params {{ void* buf[3]; }};
__device__ GridBarrier grid;
struct Sum {{ JM_DEVICE double operator()(double a, double b) const {{ return a + b; }} }};
extern "C" __global__ void test_kernel(const __grid_constant__ Params p) {{
{loads}
{atomics}
  unsigned char* smem = dynamic_shared();
  cp_async_16(smem, p.buf[0]), cp_async_8(smem + 16, p.buf[0], false);
  cp_async_4(smem + 32, p.buf[0]);
  cp_async_commit();
  cp_async_wait<0>();
  uint32_t a[2][4], b[2][2];
  float d[2][2][4] = {{}};
  ldmatrix_x4(a[0], smem), ldmatrix_x4_trans(a[1], smem);
  ldmatrix_x2(b[0], smem), ldmatrix_x2_trans(b[1], smem);
  mma_tiles_bf16(d, a, b), mma_tiles_f16(d, a, b), mma_tiles_tf32(d, a, b);
  uint32_t n[2][2][4] = {{}};
  mma_tiles_bytes<int8_t, int8_t>(n, a, b), mma_tiles_bytes<int8_t, uint8_t>(n, a, b);
  mma_tiles_bytes<uint8_t, int8_t>(n, a, b), mma_tiles_bytes<uint8_t, uint8_t>(n, a, b);
#if __CUDA_ARCH__ >= 890
  mma_tiles_bytes<f8e4m3, f8e4m3>(d, a, b), mma_tiles_bytes<f8e4m3, f8e5m2>(d, a, b);
  mma_tiles_bytes<f8e5m2, f8e4m3>(d, a, b), mma_tiles_bytes<f8e5m2, f8e5m2>(d, a, b);
#endif
  counter_signal(static_cast<uint32_t*>(p.buf[2]) + byte_permute(n[0][0][0], n[1][1][3], 0x6420));
  st_global_16(p.buf[1], load_global_16_nc(p.buf[0]));
  st_global_16(p.buf[1], load_global_16_stream(p.buf[0]));
  st_global_16(p.buf[1], load_global_16_coherent(p.buf[0]));
  st_global_16(p.buf[1], load_global_16(p.buf[0]));
  prefetch_l2(p.buf[0]), fence_acq_rel_gpu(), nanosleep(20);
  auto* word = static_cast<uint64_t*>(p.buf[2]);
  auto* counter = static_cast<uint32_t*>(p.buf[2]);
  st_release_gpu(word, atom_cas(word, uint64_t(1), ld_acquire_gpu(word)));
  const Flagged<float> last{{word, to_tf32(d[0][0][0])}};
  store<float, 2>(Flagged<float>{{word, 2}}, load<float, 2>(last));
  store<bf16, 4>(Flagged<bf16>{{counter, 2}}, load<float, 4>(Flagged<bf16>{{counter, 1}}));
  store<uint8_t, 4>(static_cast<uint8_t*>(p.buf[1]), Vec<int, 4>{{}});  // of bytes there are none
  counter_signal(counter), counter_wait(counter, 1);
  named_barrier(1, 64);
  *static_cast<double*>(p.buf[1]) = block_reduce(double(d[1][1][1]), Sum{{}}, smem) +
                                    shfl_idx(bf16{{uint16_t(warp_ballot(warp_any(true)))}}, 3).bits;
  grid_barrier(&grid);
}}
"""), arch)
    assert binary.spill_stores == 0


def test_a_bad_source_names_the_line() -> None:
    with pytest.raises(nvrtc.NvrtcError, match=r"NVRTC could not compile .* for sm_90a") as caught:
        nvrtc.compile_cuda("__global__ void f() { undefined_name(); }", "sm_90a", name="bad.cu")
    assert "bad.cu(1)" in str(caught.value) and "undefined_name" in caught.value.log


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(nvrtc.NvrtcError, match="sm_12345"):
        nvrtc.compile_cuda("", "sm_12345")


def test_missing_bindings_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc._nvrtc.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    try:
        with pytest.raises(nvrtc.MissingNvrtcError, match="pip install cuda-bindings"):
            nvrtc.compile_cuda("", "sm_90a")
    finally:
        nvrtc._nvrtc.cache_clear()


def test_version() -> None:
    major, minor = nvrtc.nvrtc_version().split(".")
    assert int(major) >= 12 and int(minor) >= 0


def test_headers_hash_is_stable() -> None:
    assert headers.headers_hash() == headers.headers_hash()
    assert len(headers.headers_hash()) == 64


def test_a_compiler_that_nobody_needs_any_more_is_ended() -> None:
    unwanted = Event()
    Timer(0.3, unwanted.set).start()
    begin = time.monotonic()
    with pytest.raises(nvrtc.NvrtcError, match="not needed"):
        nvrtc._run([sys.executable, "-c", "import time; time.sleep(60)"], b"", None,
                   [Event(), unwanted])
    assert time.monotonic() - begin < 20


def test_one_that_is_looked_after_gets_and_says_all() -> None:
    text = b"x" * 5_000_000  # more than pipes hold
    echo = "import sys, time; time.sleep(0.2); sys.stdout.buffer.write(sys.stdin.buffer.read())"
    done = nvrtc._run([sys.executable, "-c", echo], text, 60, [Event()])
    assert (done.returncode, done.stdout) == (0, text)
    with pytest.raises(subprocess.TimeoutExpired) as late:
        nvrtc._run([sys.executable, "-c", "import sys, time; print('on', file=sys.stderr, "
                    "flush=True); time.sleep(60)"], b"", 2, [Event()])
    assert late.value.stderr.strip() == b"on"
