"""Plant known faults, one at a time, and tell which of them the tests see.

    python tests/mutants [--list] [WORD ...]

Run the faults of faults.toml whose kind, file or text contains one of the words, or all of them.
Each is planted in a copy of the tree, where the tests that it names are run.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FAILED, PASSED = 1, 0  # pytest's exit codes


class Fault(NamedTuple):
    """A fault to plant: `old`, which stands once in the file, becomes `new`."""

    kind: str
    file: str
    old: str
    new: str
    tests: list[str]

    def __str__(self) -> str:
        return f"{self.kind}: {self.file}: {' '.join(self.new.split())[:70]}"


def read_faults() -> list[Fault]:
    listed = tomllib.loads(Path(__file__).with_name("faults.toml").read_text("utf-8"))
    return [Fault(**each) for each in listed["fault"]]


def explain_stale(fault: Fault) -> str | None:
    """Explain why a fault can no longer be planted; None if it can."""
    path = ROOT / fault.file
    if not path.is_file():
        return "There is no such file."
    count = path.read_text("utf-8").count(fault.old)
    if count != 1:
        return f"The old text stands {count} times in the file, expected once: {fault.old!r}"
    missing = [one for one in fault.tests if "/" in one and not (ROOT / one).exists()]
    return f"There are no tests {missing}." if missing else None


def copy_tree(folder: Path) -> None:
    """Copy all files that git knows or would know, without the states of trainings."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("runs/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def run_tests(folder: Path, *words: str) -> tuple[int, str]:
    """Run pytest in the copy; returns its exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-x", "--tb=line", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def try_fault(fault: Fault, folder: Path) -> str:
    """Plant the fault, run its tests, take it out again, and return "seen" or what else came.

    A test that fails counts only if it passes without the fault.
    """
    path = folder / fault.file
    text = path.read_text("utf-8")
    caches = path.parent / "__pycache__"  # Python compares times, which may be the same
    try:
        path.write_text(text.replace(fault.old, fault.new), "utf-8")
        shutil.rmtree(caches, ignore_errors=True)
        code, printed = run_tests(folder, *fault.tests)
    finally:
        path.write_text(text, "utf-8")
        shutil.rmtree(caches, ignore_errors=True)
    if code == FAILED:
        code, printed = run_tests(folder, "--last-failed", *fault.tests)
        if code == PASSED:
            return "seen"
    elif code == PASSED:
        return "NOT SEEN"
    return f"TESTS CANNOT RUN, OR FAIL WITHOUT THE FAULT\n{printed}\n"


def main(words: list[str]) -> None:
    only_list = "--list" in words
    words = [word for word in words if word != "--list"]
    faults = [one for one in read_faults() if not words or any(word in str(one) for word in words)]
    if only_list:
        print(*faults, sep="\n")
        return
    seen = 0
    with TemporaryDirectory(prefix="vitviz-mutants-") as name:
        copy_tree(Path(name))
        for fault in faults:
            stale = explain_stale(fault)
            found = f"STALE    {stale}\n" if stale else try_fault(fault, Path(name))
            seen += found == "seen"
            print(f"{found:8}", fault, flush=True)
    print(f"{seen} of {len(faults)} faults seen")
    sys.exit(seen < len(faults))


if __name__ == "__main__":
    main(sys.argv[1:])
