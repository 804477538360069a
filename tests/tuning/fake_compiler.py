"""A compile worker that writes what the test wants: ``python fake_compiler.py <behaviours.json>``.

The behaviours are a list; the n-th candidate that is submitted becomes the n-th (see
`fake_cuda`), or fails to compile where there is an ``error``, ``spills`` or ``serialized``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

behaviours = json.loads(Path(sys.argv[1]).read_text())
for line in sys.stdin:
    request = json.loads(line)
    number = int(Path(request["cubin"]).stem) - 1
    what = behaviours[number] if number < len(behaviours) else {"us": 1000.0, "value": 1.0}
    if what.get("error") == "crash":
        os._exit(3)
    Path(request["cubin"]).write_text(json.dumps(what))
    answer = {"error": what["error"]} if "error" in what else {
        "resources": {"spill_stores": what.get("spills", 0),
                      "serialized": what.get("serialized", 0)}}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
