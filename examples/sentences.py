"""The sentences that ship with the examples."""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).resolve().parent / "data" / "sentences.txt"


def shipped() -> list[str]:
    """32 English sentences of varied length, some alike in meaning."""
    return FILE.read_text(encoding="utf-8").splitlines()
