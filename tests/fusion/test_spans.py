"""Which ranges of bytes meet, beside asking every pair."""

from __future__ import annotations

import random

from jaxmono.fusion.spans import overlap, overlaps


def test_as_every_pair_says() -> None:
    rng = random.Random(0)
    for _ in range(200):
        spans = {i: (rng.choice("ab"), first := rng.randrange(30), first + rng.randrange(1, 12))
                 for i in range(12)}
        wanted = {i: [j for j in spans if j != i and overlap(spans[i], spans[j])] for i in spans}
        assert overlaps(spans) == wanted
