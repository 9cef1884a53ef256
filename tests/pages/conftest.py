"""Fixtures of the page tests: no network, small models, nothing left behind."""

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

import pytest
import timm
from examples import OWN, own_module, watched

from vitviz import Model
from vitviz.app import state


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads fail as they do where there is no network."""
    create = timm.create_model

    def offline(*args: Any, pretrained: bool = False, **options: Any) -> Any:
        if pretrained:
            raise OSError("no network in tests")
        return create(*args, **options)

    monkeypatch.setattr(timm, "create_model", offline)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Model]:
    """Makes the app show a small model instead of those of the menu."""

    def show(kind: str, **options: Any) -> Model:
        module = own_module(**OWN.get(kind, {}), **options)
        model = watched(module, module.patch_embed.image_size, name=f"{kind} {options}")
        monkeypatch.setattr(state, "load", lambda name, pretrained: (model, Lock()))
        return model

    return show


@pytest.fixture(autouse=True, scope="module")
def _released() -> Iterator[None]:
    yield
    state.load.clear()
    state.captures.clear()
