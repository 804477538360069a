"""MiniLM's weights in 44 MB, for a machine where the package cannot be installed.

    python -m benchmarks.pack_minilm pack .minilm       here: encoder, and the rows of the word
                                                        table that the shipped sentences use
    python -m benchmarks.pack_minilm unpack .minilm     there: model.safetensors, other rows zero
    make gpu PYTHON=python3 MINILM_DIR=.minilm

Results on the shipped sentences are the same to the bit, since no other row is read.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from examples.models import minilm
from examples.sentences import shipped

_TABLE = "embeddings.word_embeddings.weight"
_PACKED = "packed.safetensors"


def pack(folder: Path) -> None:
    """Writes packed weights and the tokenizer into ``folder``."""
    source = minilm.package_directory()
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Any] = load_file(source / "model.safetensors")
    ids, _ = minilm.load_tokenizer(source)(shipped())
    rows = np.unique(ids).astype(np.int32)
    tensors["rows"] = rows
    tensors["height"] = np.array([tensors[_TABLE].shape[0]], np.int32)
    tensors[_TABLE] = tensors[_TABLE][rows]
    save_file(tensors, folder / _PACKED)
    shutil.copy(source / "tokenizer.json", folder)


def unpack(folder: Path) -> None:
    """Writes ``model.safetensors`` beside the packed weights."""
    tensors: dict[str, Any] = load_file(folder / _PACKED)
    rows, height = tensors.pop("rows"), int(tensors.pop("height")[0])
    table = np.zeros((height, tensors[_TABLE].shape[1]), np.float32)
    table[rows] = tensors[_TABLE]
    tensors[_TABLE] = table
    save_file(tensors, folder / "model.safetensors")


def main(arguments: list[str]) -> int:
    """Command line; returns the exit status."""
    match arguments:
        case ["pack", folder]:
            pack(Path(folder))
        case ["unpack", folder]:
            unpack(Path(folder))
        case _:
            sys.stderr.write("usage: python -m benchmarks.pack_minilm pack|unpack FOLDER\n")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
