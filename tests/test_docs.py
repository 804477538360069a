"""The documents say what is true: generated parts are current, commands and links exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_generated_parts_of_the_readme_are_current() -> None:
    spec = importlib.util.spec_from_file_location("update_readme",
                                                  ROOT / "scripts" / "update_readme.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = (ROOT / "README.md").read_text()
    assert script.updated(text) == text, "run python scripts/update_readme.py"
    with pytest.raises(ValueError, match=r"README\.md has no place for 'supported ops'"):
        script.updated("no parts here")


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_paths_and_make_targets_exist(name: str) -> None:
    file = ROOT / name
    text = file.read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([a-z-]+)`", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target} in {name}"
    for link in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (file.parent / link).exists(), f"link to {link} in {name}"
    for path in re.findall(r"`((?:jaxmono|tests|docs|scripts|examples|benchmarks)/[\w./]+)`", text):
        assert (ROOT / path).exists(), f"{path} in {name}"
