"""What hides behind what in a kernel: the same kernel without its loads, products or epilogues.

    python -m benchmarks.prepare --cache_dir=/tmp/kept --models=gemm_table    here
    python -m benchmarks.ablate /tmp/kept                                     here: compiles
    python -m benchmarks.beside /tmp/kept /tmp/kept-no*                       on the GPU

Writes a folder beside the given one for each of ``--parts`` (FOLDER-noload, FOLDER-noproducts,
FOLDER-noepilogue, FOLDER-noload_noepilogue, FOLDER-noproducts_noepilogue), with an index as
benchmarks.prepare writes it. Outputs are wrong on purpose, and `benchmarks.beside` tells so; the
barriers of the ring stay, so that producers and consumers still wait for each other.

2048x768x3072 in bf16 takes 18.9 us on an H200, 14.0 without loads, 14.4 without products, 17.9
without epilogue: loads and products each would fit in 12 us, and do not overlap fully.

For products on warpgroups (`GemmWgmma` and `GemmSwapped`); kernels that have none are told and left
out. Stages of another kind stay whole. Of two products back to back only the first loses anything,
in kernels that also have one alone. tf32: rounding B stays without loads, fragments of A go with
the products. Split k: without epilogue the blocks' sums do not meet either. What an epilogue reads
through the ring is still loaded without loads, and not without epilogue.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from absl import app, flags

from benchmarks import ahead
from examples.cli import flags_parser
from jaxmono._errors import CompileError
from jaxmono.codegen.nvrtc import compile_cuda
from jaxmono.codegen.program import Program, ProgramFormatError

_VARIANTS = ("noload", "noproducts", "noepilogue", "noload_noepilogue", "noproducts_noepilogue")
_PARTS = flags.DEFINE_list("parts", list(_VARIANTS), "What to leave out: noload, noproducts, "
                           "noepilogue, or several of them joined by _.")

HEADER = "jaxmono/gemm_wgmma.cuh"
_LOADS = ("TileA::template gather<PRODUCERS>(slot(smem, i), thread, rows, k0 / BK + t, load_a);",
          "a.fill(slot(smem, i), t);", "b.fill(to, t);")
_PRODUCTS = ("Wgmma<T>::template run<!A_K_MAJOR, !B_K>(", "wgmma_tf32_registers(acc.x, a[s],")
_WANTED = """// Never, but the compiler does not know: the sums have to be made.
template <int NT>
JM_DEVICE bool ablate_wanted(const float (&x)[NT][4]) {
  float z = 0.0f;
#pragma unroll
  for (int j = 0; j < NT; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) z += x[j][e];
  return z == 123.456f;
}

"""
_ANCHOR = "// T: bf16, f16, float (tf32) or F8Pair, then k counts pairs."
_EDITS = {"noload": [(text, ";") for text in _LOADS],
          "noproducts": [(text, f"if (t < 0) {text}") for text in _PRODUCTS],
          "noepilogue": [(_ANCHOR, _WANTED + _ANCHOR)]}
"""Of the header; each text is there once."""
_SUMS, _FINISH = "G::Accumulators sums;", r"G::finish(_split<|_windows<|_shared<|_fragments<|<)"
"""Of the generated part: each product has one of each."""


class MissingText(ValueError):
    """The source is not what the edits were written for; names the part and the text."""


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if a kernel could not be made, 2 for arguments that make no sense."""
    unknown = [v for v in _PARTS.value if not set(v.split("_")) <= _EDITS.keys()]
    if len(arguments) != 2 or not (Path(arguments[1]) / ahead.INDEX).is_file():
        problem = f"give one folder that benchmarks.prepare has made, with {ahead.INDEX}"
    elif unknown or not _PARTS.value:
        problem = (f"--parts={','.join(unknown)}: a kernel can be made with {', '.join(_EDITS)}, "
                   f"or several of them joined by _")
    else:
        try:
            return 0 if ablate(Path(arguments[1]).resolve(), _PARTS.value) else 1
        except (CompileError, MissingText, ProgramFormatError) as error:
            sys.stderr.write(f"python -m benchmarks.ablate: {error}\n")
            return 1
    sys.stderr.write(f"python -m benchmarks.ablate: {problem}\n")
    return 2


def ablate(folder: Path, variants: Sequence[str]) -> list[Path]:
    """Compiles the kernels of a folder without some parts; returns the folders that there are then.

    Of a case with several kernels, those without such a product are kept as they are.

    Raises:
      MissingText: a text that is to be replaced is not there.
      CompileError: NVRTC is not there, or refuses a kernel.
    """
    cases = ahead.read(folder)
    programs = {file: Program.from_bytes((folder / file).read_bytes())
                for files in cases.values() for file in files}
    have = {file for file, program in programs.items() if has_product(program.source)}
    for case, files in cases.items():
        for k, file in enumerate(files):
            if file not in have:
                name = f"{case} kernel {k + 1}" if len(files) > 1 else case
                sys.stdout.write(f"{name}: has no product on warpgroups; "
                                 f"{'kept as it is' if have & {*files} else 'skipped'}\n")
    cases = {case: files for case, files in cases.items() if have & {*files}}
    if not cases:
        sys.stderr.write(f"python -m benchmarks.ablate: {folder}: nothing to leave out\n")
        return []
    made = folder / ahead.MADE
    about = json.loads(made.read_text(encoding="utf-8")) if made.exists() else {}
    out = [folder.with_name(f"{folder.name}-{variant}") for variant in dict.fromkeys(variants)]
    for to, variant in zip(out, dict.fromkeys(variants), strict=True):
        parts = variant.split("_")
        whose = {file: case for case in reversed(cases) for file in cases[case]}
        for file, case in whose.items():
            sys.stdout.write(f"{case} {variant}: {_compile(programs[file], parts, to / file)}\n")
            sys.stdout.flush()
        ahead.write(to, cases)
        (to / ahead.MADE).write_text(json.dumps({**about, "without": [
            *about.get("without", ()), *(part.removeprefix("no") for part in parts)]}),
            encoding="utf-8")
    return out


def _compile(program: Program, parts: Sequence[str], to: Path) -> str:
    """Writes a kernel without some parts, unless it is there; returns what to tell of it."""
    to.parent.mkdir(parents=True, exist_ok=True)
    if not has_product(program.source):
        to.write_bytes(program.to_bytes())
        return "as it is"
    source, start = without(program.source, parts), time.perf_counter()
    if to.exists() and Program.from_bytes(to.read_bytes()).source == source:
        return "there"
    made = compile_cuda(source, program.arch, split=True)
    to.write_bytes(replace(program, source=source, binary=made.cubin).to_bytes())
    return (f"{made.registers} registers, {made.spill_stores} bytes spilled, "
            f"{time.perf_counter() - start:.1f} s")


def has_product(source: str) -> bool:
    """Whether a kernel's own part, behind the headers, has a product on warpgroups."""
    return re.search(r"using G = Gemm(Wgmma|Swapped)<", source[_own(source):]) is not None


def without(source: str, parts: Sequence[str]) -> str:
    """A kernel's source without some of noload, noproducts, noepilogue.

    Raises:
      MissingText: a text that is to be replaced is not there, or there twice.
    """
    for part in parts:
        source = edited(source, _EDITS[part], part)
    if "noepilogue" in parts:
        own = _own(source)
        # All of a task behind its products: the stores; where k is split, other blocks' sums too.
        body, n = re.subn(rf"^( *)(?={_FINISH})",
                          r"\1if (!ablate_wanted(sums.x)) return at;\n\1", source[own:], flags=re.M)
        if not n or n != body.count(_SUMS):
            raise MissingText(f"noepilogue: the kernel has {n} times G::finish, and "
                              f"{body.count(_SUMS)} times {_SUMS}")
        # Whose producers would bring what nobody takes.
        source = source[:own] + re.sub(r"^ *G::Source<.*>::produce\(.*\n", "", body, flags=re.M)
    return source


def edited(source: str, edits: Sequence[tuple[str, str]], what: str = "clocks") -> str:
    """A kernel's source with texts of gemm_wgmma.cuh replaced.

    Raises:
      MissingText: a text is not there, or there twice; names ``what`` needs it.
    """
    begin, end = (source.find(f"// ==== {x}{HEADER} ") for x in ("", "end of "))
    if not 0 <= begin < end:
        raise MissingText(f"{what}: the kernel has no {HEADER}")
    header = source[begin:end]
    for text, instead in edits:
        if (n := header.count(text)) != 1:
            raise MissingText(f"{what}: {HEADER} has {n} times, and not once: {text.strip()}")
        header = header.replace(text, instead)
    return source[:begin] + header + source[end:]


def _own(source: str) -> int:
    """Where the kernel's own part begins."""
    return source.rfind("// ==== end of jaxmono/") + 1


if __name__ == "__main__":
    app.run(main, flags_parser=flags_parser("python -m benchmarks.ablate"))
