"""Which module may import which, read from the sources; and that `import vitviz` costs nothing."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest

from vitviz.app.pages import PAGES

PACKAGE = Path(__file__).parents[1] / "vitviz"

# A layer is a module of vitviz, or a package of that name with all its parts. What all may import,
# `common.language` and its neighbours, stands in COMMON.
COMMON = {"common"}
_MODEL = {"vit", "model"}
_CAPTURE = {*_MODEL, "inspection", "activations"}
LAYERS: Mapping[str, set[str]] = {  # each with the layers that it may import
    "common": set(),
    "vit": set(),
    "inspection": set(),
    "text": set(),
    "model": {"vit"},
    "zoo": _CAPTURE,  # `watch` looks at what a changed module attends to
    "activations": {*_MODEL, "inspection"},  # acts.measure()
    "attribution": _CAPTURE,
    "intervention": _CAPTURE,
    "plots": {"activations", "inspection"},  # plots.attention_rollout(acts) and its like
    "profiling": {*_CAPTURE, "attribution", "intervention", "plots"},
    "web.token_map": {"activations", "model", "plots"},
    "web.anatomy": _CAPTURE,
    "web.anatomy_map": {*_CAPTURE, "plots", "text", "web.anatomy", "web.token_map"},
    "web": {*_CAPTURE, "plots", "text", "zoo"},
    "training": {*_MODEL, "zoo", "inspection"},
}
_ALL = {*LAYERS, "cli", "app", "vitviz"}  # "vitviz": the public names of vitviz/__init__.py
RULES: Mapping[str, set[str]] = {
    **LAYERS,
    "__main__": {"cli"},
    "cli": _ALL,
    "app": _ALL - {"training"},
    "vitviz": _ALL,
}
THIRD_PARTY: Mapping[str, set[str]] = {
    "streamlit": {"app"},
    "plotly": {"plots", "web"},  # which puts its script into a file
    "timm": {"zoo"},
    "anywidget": {"web"},
    "traitlets": {"web"},
    "latex2mathml": {"web"},  # MathML
    "huggingface_hub": {"common"},
    "babel": {"common"},
    "segno": {"app"},
    "sklearn": {"inspection", "training"},
    "torch": {
        *("vit", "model", "zoo", "activations", "attribution", "intervention", "profiling"),
        *("web.anatomy", "training"),
    },
}
# Parts of the app: each imports those before it, and no page another page.
APP = (
    "options",
    "pages",
    "settings",
    "cells",
    "records",
    "lessons",
    "shared",
    "widgets",
    "controls",
    "screens",
    "server",
    "main",
)
# eager: runs when the module is imported; lazy: in a function; hint: under TYPE_CHECKING
When = Literal["eager", "lazy", "hint"]
EXCEPTIONS: set[tuple[str, str, When]] = {
    ("app", "plotly", "hint"),
    ("cli", "torch", "lazy"),
    ("activations", "vitviz", "lazy"),  # acts.show() is vitviz.show(acts)
}
LAZY_ONLY = {("cli", "training"), *(("vitviz", layer) for layer in _ALL)}


@dataclass(frozen=True)
class Import:
    target: str  # dotted name of a module, or of something in it
    when: When
    line: int


@cache
def sources() -> dict[str, tuple[str, bool]]:
    """Source of every module of vitviz by its dotted name, and whether it is a package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ["vitviz", *path.relative_to(PACKAGE).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = path.read_text(encoding="utf-8"), is_package
    return found


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


def absolute(target: str, level: int, module: str, is_package: bool) -> str:
    """The module that `from ...target import` means inside `module`."""
    if not level:
        return target
    parts = module.split(".")
    base = parts[: len(parts) - level + is_package]
    return ".".join([*base, target] if target else base)


def targets(node: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    """Dotted names of what one statement or call imports: modules, or names in them."""
    match node:
        case ast.Import(names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(target, names, level):
            base = absolute(target or "", level, module, is_package)
            yield from (f"{base}.{alias.name}" for alias in names)
        case ast.Call(
            ast.Name("import_module" | "__import__") | ast.Attribute(_, "import_module"),
            [ast.Constant(str(name)), *_],
        ):
            level = len(name) - len(name.lstrip("."))
            yield absolute(name.lstrip("."), level, module, is_package)


def imports(node: ast.AST, module: str, is_package: bool, when: When = "eager") -> Iterator[Import]:
    for target in targets(node, module, is_package):
        yield Import(target, when, getattr(node, "lineno", 0))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and when == "eager":
        when = "lazy"
    hints: list[ast.stmt] = []
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        hints = node.body
    for child in ast.iter_child_nodes(node):
        yield from imports(child, module, is_package, "hint" if child in hints else when)


def layer_of(module: str) -> str:
    """The longest name of a layer that the module's begins with."""
    _, *parts = module.split(".")
    names = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((name for name in names if name in RULES), parts[0] if parts else "vitviz")


@cache
def all_imports(module: str, source: str, is_package: bool) -> tuple[Import, ...]:
    return tuple(imports(parsed(source), module, is_package))


def violations(module: str, source: str, is_package: bool = False) -> list[str]:
    """What a module's imports break, one sentence each."""
    layer = layer_of(module)
    if layer not in RULES:
        return [f"{module} is in no layer."]
    return [
        f"{module}, line {found.line}: {complaint}"
        for found in all_imports(module, source, is_package)
        if (complaint := _complaint(layer, found) or _within_app(module, found))
    ]


def _complaint(layer: str, found: Import) -> str | None:
    top, *parts = found.target.split(".")
    if top != "vitviz":
        allowed = layer in THIRD_PARTY.get(top, {layer}) or (layer, top, found.when) in EXCEPTIONS
        return None if allowed else f"{layer} imports {top} ({found.when})."
    to = layer_of(found.target)
    if to not in RULES and len(parts) == 1:
        to = "vitviz"  # one of the public names
    if layer != "vitviz" and (to == layer or layer == to.partition(".")[0]):
        return None  # parts of one package
    if to not in {*RULES[layer], *COMMON} and (layer, to, found.when) not in EXCEPTIONS:
        return f"{layer} imports {to}."
    if (layer, to) in LAZY_ONLY and found.when == "eager":
        return f"{layer} imports {to} before it is needed."
    if layer == "cli" and to == "app" and parts[1:2] not in ([], ["server"], ["options"]):
        return f"cli imports {'.'.join(parts)}, a part of the app."
    return None


def _within_app(module: str, found: Import) -> str | None:
    if not (module.startswith("vitviz.app.") and found.target.startswith("vitviz.app.")):
        return None
    (part, *_), (to, *rest) = (name.split(".")[2:] for name in (module, found.target))
    if to not in APP or APP.index(to) > APP.index(part):
        return f"{part} imports {to}."
    if to == part == "screens" and rest[0] in PAGES:
        return f"a page imports the page {rest[0]}."
    return None


def circle(modules: Mapping[str, tuple[str, bool]]) -> list[str]:
    """Modules that import one another in a circle, lazily and for type hints too."""

    def module_of(target: str) -> str | None:
        """`target`, or the module in which it is a name."""
        while target and target not in modules:
            target = target.rpartition(".")[0]
        return target or None

    graph = {
        name: {
            imported
            for found in all_imports(name, source, is_package)
            if (imported := module_of(found.target)) not in (None, "vitviz")
        }
        for name, (source, is_package) in modules.items()
        if name != "vitviz"  # the public names: they import all, and only when asked for
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        members: list[str] = error.args[1]
        return members
    return []


def test_modules_import_only_what_they_may() -> None:
    found = [violations(name, source, package) for name, (source, package) in sources().items()]
    assert len(found) > 200
    assert [*chain(*found)] == []


def test_no_module_imports_itself_in_a_circle() -> None:
    assert circle(sources()) == []


def test_app_script_is_part_of_the_app() -> None:
    script = PACKAGE.parent / "app.py"
    if not script.exists():
        pytest.skip("app.py lies beside the sources only")
    assert violations("vitviz.app", script.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("vitviz.vit", "from . import model"),
        ("vitviz.model.model", "def f():\n    from ..zoo import load_model"),
        (
            "vitviz.model.model",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .. import zoo",
        ),
        (
            "vitviz.inspection.rollout",
            "from importlib import import_module\nimport_module('..vit')",
        ),
        ("vitviz.app.screens.rollout", "from vitviz.app.screens.attention import page"),
        ("vitviz.app.settings", "from vitviz.app.shared import view"),
        ("vitviz.cli", "from .training import train"),
        ("vitviz.cli", "def f():\n    from .app.screens.attention import page"),
        ("vitviz.common.images.placement", "from ...helpers import something"),
        ("vitviz.helpers", ""),
        ("vitviz.inspection", "class A:\n    import plotly.graph_objects as go"),
    ],
)
def test_forbidden_import_is_found(module: str, source: str) -> None:
    assert len(violations(module, source, module == "vitviz.inspection")) == 1


def test_circle_is_found() -> None:
    pages = {
        "vitviz.app": ("from . import main", True),
        "vitviz.app.main": ("def f():\n    from .settings import read", False),
        "vitviz.app.settings": ("import vitviz.app.main", False),
    }
    assert set(circle(pages)) == {"vitviz.app.main", "vitviz.app.settings"}


def loaded_by(statements: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after these statements."""
    code = f"{statements}\nimport sys\nprint(*(name.split('.')[0] for name in sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.splitlines()[-1].split())


MODELS = {"torch", "timm", "sklearn"}


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("vitviz", MODELS | {"plotly", "PIL", "streamlit", "numpy"}),
        ("vitviz.cli", MODELS | {"plotly", "streamlit"}),
        ("vitviz.app.main", MODELS),  # streamlit itself loads PIL and plotly
    ],
)
def test_importing_a_module_loads_nothing_heavy(module: str, heavy: set[str]) -> None:
    assert not loaded_by(f"import {module}") & heavy


def test_public_names() -> None:
    vitviz = importlib.import_module("vitviz")
    names = vitviz.__all__
    assert len(names) == len(set(names))
    for name in names:
        assert callable(getattr(vitviz, name)), name
    # Importing `vitviz.x` binds `x` in the package: over a function of that name.
    public = {name for name in names if not isinstance(getattr(vitviz, name), ModuleType)}
    assert not public & {layer_of(name) for name in sources()}
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = vitviz.no_such_name


def test_every_part_resolves_when_it_is_first_used() -> None:
    parts = {layer_of(name).partition(".")[0] for name in sources()} - {"vitviz", "app", "__main__"}
    parts |= {"equivariance", "report", "targets"}  # modules in these parts
    assert {"zoo", "model", "profiling"} <= parts
    each = f"for name in {sorted(parts)}: assert getattr(vitviz, name).__doc__, name"
    loaded_by(f"import vitviz\n{each}")
    vitviz = importlib.import_module("vitviz")
    assert {*vitviz.__all__, "zoo", "vit", "model", "equivariance"} <= set(dir(vitviz))


@pytest.mark.parametrize("first", ["measurements", "rollout"])
def test_measurements_is_the_function_in_whatever_order_modules_are_imported(first: str) -> None:
    """The module of that name is loaded once, by the package, which then binds the function."""
    loaded_by(
        f"import vitviz.inspection.{first}\n"
        "import vitviz.inspection.measurements\n"
        "from importlib import import_module\n"
        "import_module('vitviz.inspection.measurements')\n"
        "from vitviz.inspection.measurements import Measurements\n"
        "from vitviz.inspection import measurements\n"
        "assert measurements is vitviz.inspection.measurements\n"
        "assert measurements.__qualname__ == 'measurements'"
    )
