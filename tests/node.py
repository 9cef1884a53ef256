"""Run JavaScript of the components in node: their sources, not what build.mjs joins."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import vitviz

WEB = Path(vitviz.__file__).parent / "web"
TESTS = Path(__file__).with_name("javascript")


def node() -> str:
    """Return the path of a node, which playwright brings; skip the test where there is none."""
    try:
        from playwright._impl._driver import compute_driver_executable
    except ImportError:
        found = shutil.which("node")
    else:
        found = str(compute_driver_executable()[0])
    if not found:
        pytest.skip("There is neither playwright nor node to run JavaScript with.")
    return found


def run_node(*arguments: str | Path, given: str = "") -> str:
    """Return what node prints; fail with what it complains about."""
    done = subprocess.run(
        [node(), *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def evaluate(expression: str, modules: Sequence[str], **given: Any) -> Any:
    """Return the value of an expression over the names of modules of vitviz.web and of `given`."""
    paths = [(WEB / f"{module}.js").as_uri() for module in modules]
    asked = {"expression": expression, "modules": paths, "given": given}
    return json.loads(run_node(TESTS / "evaluate.js", given=json.dumps(asked)))
