"""Equal contractions that stages run three at a time here and alone there: a Sig for each.

    stage 4   q = x @ wq;  k = x @ wk;  v = x @ wv      Sig        44 blocks each
    stage 9   q = y @ wc                         ──►    its twin   132 blocks

A Sig has one schedule. As a third of a stage's work it would leave two thirds of the blocks idle
where it is alone, as the queries of a decoder's attention to its encoder are.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Sequence

from jaxmono.fusion.plan import DotForm, Sig

_FEWER = 2
"""Times as many beside it elsewhere."""


def twins(stages: Sequence[Sequence[Sig]]) -> list[list[Sig]]:
    """The Sigs of each stage, with twins in the place of contractions that elsewhere are at least
    `_FEWER` times as many."""
    counts = [Counter(map(shape, stage)) for stage in stages]
    most: Counter[str] = Counter()
    for stage, beside in zip(stages, counts, strict=True):
        for sig in stage:
            most[sig.key] = max(most[sig.key], beside[shape(sig)])
    known: dict[str, Sig] = {}
    return [[_of(sig, beside[shape(sig)], most[sig.key], known) for sig in stage]
            for stage, beside in zip(stages, counts, strict=True)]


def _of(sig: Sig, count: int, most: int, known: dict[str, Sig]) -> Sig:
    if not isinstance(sig.form, DotForm) or _FEWER * count > most:
        return sig
    key = f"{sig.key}-{count}"
    return known.setdefault(key, dataclasses.replace(sig, key=key))


def shape(sig: Sig) -> Hashable:
    """Groups of equal shape share the SMs of a stage, whatever their prologues and epilogues."""
    f = sig.form
    return (f.batch, f.m, f.n, f.k) if isinstance(f, DotForm) else sig.key
