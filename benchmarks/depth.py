"""Compile time of one model with more and with fewer layers, every cache off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import jax

from benchmarks.data import Case, make
from benchmarks.systems_jax import compile_jaxmono
from benchmarks.timing import reason
from benchmarks.workloads.workload import Program, Workload, module_program, token_ids
from examples.models import bert

LAYERS = (12, 24)


def rows(*, tiny: bool = False, interpret: bool = False) -> Iterator[dict[str, Any]]:
    """Rows for BERT-base with each number of layers (tiny: 2 and 4 of the small one)."""
    before = os.environ.get("JAXMONO_CACHE")
    os.environ["JAXMONO_CACHE"] = "off"
    try:
        for layers in (2, 4) if tiny else LAYERS:
            row = {"part": "depth", "model": "bert_base", "layers": layers, "system": "jaxmono"}
            try:
                yield {**row, **_compiled(layers, tiny, interpret)}
            except Exception as error:
                yield {**row, "failed": reason(error)}
    finally:
        os.environ.pop("JAXMONO_CACHE")
        if before is not None:
            os.environ["JAXMONO_CACHE"] = before


def _compiled(layers: int, tiny: bool, interpret: bool) -> dict[str, Any]:
    program = _bert(layers, tiny)
    workload = Workload("bert_base", "BERT-base", "transformer", lambda _: program)
    data = make(Case(workload, 1, "bf16"), sets=1)
    compiled, facts = compile_jaxmono(data.program.step, data, "monolithic", interpret=interpret)
    return {"trace_s": facts.trace_s, "compile_s": facts.compile_s, "stages": facts.stages,
            "source_bytes": len(compiled.as_text("cuda"))}


def _bert(layers: int, tiny: bool) -> Program:
    config = bert.BertConfig(**{**vars(bert.tiny() if tiny else bert.base()), "layers": layers})

    def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
        ids = token_ids(key, (1, 32 if tiny else 128), config.vocabulary)
        return ids, jax.numpy.ones_like(ids)

    return module_program(lambda: bert.create(config), inputs, "", name="bert")
