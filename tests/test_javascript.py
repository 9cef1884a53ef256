"""The components' JavaScript: its own tests, and that what is shipped was built from it."""

import pytest
from node import TESTS, run_node

ROOT = TESTS.parents[1]


def test_the_pure_modules_pass_their_own_tests() -> None:
    run_node("--test", *sorted(TESTS.glob("*.test.js")))


def test_what_is_shipped_is_what_the_sources_are_built_into() -> None:
    if not (ROOT / "node_modules").exists():
        pytest.skip("There is no esbuild: npm ci")
    run_node(ROOT / "build.mjs", "--check")
