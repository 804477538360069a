"""`compute-sanitizer` finds no bad access and no shared-memory race in generated kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SANITIZER = shutil.which("compute-sanitizer") or shutil.which(
    "compute-sanitizer", path="/usr/local/cuda/bin")
FOUND = 77
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_clean(tool: str) -> None:
    script = Path(__file__).with_name("sanitized.py")
    numbers = [str(number) for number in range(9)]  # one batch of every kind
    # Buffers of every size, with wgmma, attention and pairs of convolutions.
    numbers += ["resnet50:4", "bert_base:1"] if tool == "memcheck" else ["b2b_conv_1:32"]
    numbers.append("vgg16:2")  # gathered rows, pools, weights that stay
    done = subprocess.run(
        [str(SANITIZER), f"--tool={tool}", f"--error-exitcode={FOUND}", "--print-limit=5",
         sys.executable, str(script), *numbers],
        capture_output=True, text=True, check=False, timeout=560,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
             # Every buffer its own allocation, so that memcheck knows where it ends.
             "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
             "XLA_FLAGS": "--xla_gpu_enable_command_buffer="})
    told = done.stdout[-6000:] + done.stderr[-2000:]
    assert done.returncode == 0, told
    assert "1 kernels" in done.stdout, told
