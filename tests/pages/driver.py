"""Drives the app without a browser: opens pages, uploads, reads what is on screen."""

import base64
import io
import json
import re
import time
from collections.abc import Callable
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from examples import picture
from PIL import Image
from streamlit import config
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

import vitviz
from vitviz import Activations, Model, capture
from vitviz.app.pages import OPENING
from vitviz.app.shared import models, pictures, results, started
from vitviz.common import DEFAULT_MODEL
from vitviz.web import token_map as component
from vitviz.zoo.checkpoints import shipped_names

APP = str(Path(vitviz.__file__).with_name("app") / "main.py")
SHIPPED = DEFAULT_MODEL  # opens first
#: What its captions are chosen by.
OPENING_TRAITS = frozenset(
    ("global", "all-to-all", "prefix", "cls", "classes", "trained", "shipped", "mimetic")
)


def opened(page: str = "attention", **link: str) -> AppTest:
    """The app at one of its pages, which shows a token map unless another is named, from a link."""
    return opened_with(page, **link)


def opened_with(page: str, *folds: str, locale: str | None = None, **link: str) -> AppTest:
    """The same with some of what it folds open from the first run on, in a browser's language."""
    at = AppTest.from_file(APP, default_timeout=120)
    at.context["locale"] = locale
    for name, value in link.items():
        at.query_params[name] = value
    for fold in folds:
        at.session_state[fold] = True
    return at_page(at, page).run()


def opened_with_data(page: str = "attention", **link: str) -> AppTest:
    """The same with what holds its tables open."""
    return opened_with(page, f"data_{page}", **link)


def opened_with_norms(*folds: str, **link: str) -> AppTest:
    """Tokens, with what folds its norms open."""
    return opened_with("tokens", "norms", *folds, **link)


@cache
def shown(page: str = "attention") -> AppTest:
    """One of its pages as it opens, for tests that only read it."""
    return opened(page)


def forget() -> None:
    """Empty the caches that sessions share, but for what is of shipped models: others that tests
    make and prepare may have the name of another."""
    shipped = {*shipped_names(), "photo"}
    for shared in (models.cache(), results.capture_cache()):
        keys: list[Any] = list(shared._values)  # tuples
        for key in keys:
            if shipped.isdisjoint(key) or "profiles" in key:
                del shared._values[key]


def read_anew() -> None:
    """The command line is read anew when it is asked for next, and so are models and words."""
    forget()  # first: where there is no cache of models yet, this reads the command line
    started.options.clear()
    models.words.clear()


def listen(address: str | None) -> None:
    """What the server was told to listen on."""
    config.set_option("server.address", address)


def address(at: AppTest) -> dict[str, str]:
    """The settings that the address holds."""
    return dict(at.query_params)


def drawn(at: AppTest) -> tuple[str, ...]:
    """All that is on screen of the data: charts, and the token map with its numbers."""
    own = ("session", "version", "provenance")  # of messages, and of the files that are saved
    shown = {name: value for name, value in token_map(at).items() if name not in own}
    numbers = [values.tobytes().hex() for values in stack(at).values()]
    way = [json.dumps(data) for data in components(at, "vitviz_anatomy") if "stack" in data]
    timeless = (re.sub(r"\"date\": ?\"[^\"]*\"", "", spec) for spec in specs(at))
    return (*timeless, json.dumps(shown), *numbers, *way)


def at_page(at: AppTest, page: str) -> AppTest:
    """Ask for a page in the next run.

    `AppTest.switch_page` knows pages by their files; these are functions, known by their address.
    """
    at._page_hash = calc_hash("" if page == OPENING else page)
    return at


def components(at: AppTest, name: str) -> list[dict[str, Any]]:
    """What the browser is sent of each component of this name: its JSON."""
    protos = [element.proto for element in at.get("bidi_component")]
    texts = [proto.mixed.json or proto.json for proto in protos if proto.component_name == name]
    return [json.loads(text or "{}") for text in texts]


def token_map(at: AppTest) -> dict[str, Any]:
    """What the token map is told to show, and of the frame on screen; empty where there is none.

    `shapes` are those of all frames, `frames` their names. Of two it is the first.
    """
    return next(iter(token_maps(at)), {})


def token_maps(at: AppTest) -> list[dict[str, Any]]:
    """The same of all that are on screen."""
    found = []
    for data in components(at, "vitviz_token_map"):
        if "state" not in data:
            continue
        shapes = data["frames"]
        shown = {**shapes[data["state"]["frame"]], **data, "shapes": shapes}
        found.append(shown | {"frames": [shape["name"] for shape in shapes]})
    assert len(found) <= 1 or len({data["link"] for data in found} - {""}) == 1
    return found


def stack(at: AppTest) -> dict[str, np.ndarray]:
    """The numbers that the first token map gets: `codes`, `peaks` and `prefix`, flat."""
    return next(iter(stacks(at)), {})


def stacks(at: AppTest) -> list[dict[str, np.ndarray]]:
    """The same of all that are on screen."""
    found = []
    for element in at.get("bidi_component"):
        sent = json.loads(element.proto.mixed.json or "{}")
        if "stack" in sent:
            blobs = element.proto.mixed.arrow_blobs
            found.append(
                {
                    name: _table(blobs[ref["__streamlit_arrow_ref__"]].data)
                    for name, ref in sent.items()
                    if name != "stack"
                }
            )
    return found


def _table(data: bytes) -> np.ndarray:
    column: np.ndarray = pa.ipc.open_stream(data).read_all()["values"].to_numpy()
    return column


def schema(name: str) -> set[str]:
    """What the token map states that an object of its message holds."""
    text = Path(component.__file__).with_name("message.d.ts").read_text(encoding="utf-8")
    (body,) = re.findall(rf"^export interface {name} {{(.*?)^}}", text, re.DOTALL | re.MULTILINE)
    return set(re.findall(r"^  (\w+)\??:", body, re.MULTILINE))


def commit(at: AppTest, which: int = 0, **changes: object) -> AppTest:
    """What the browser tells the server after a click or a key in the token map."""
    shown = token_maps(at)[which]
    payload = {**shown["state"], **changes, "version": shown["version"] + 1}
    return trigger(at, "vitviz_token_map", "commit", payload, which)


def trigger(at: AppTest, name: str, event: str, value: object, which: int = 0) -> AppTest:
    """What the browser sends of a component's event; of its mounts, one with a state does."""
    mounts = [e.proto for e in at.get("bidi_component") if e.proto.component_name == name]
    sender = ([proto for proto in mounts if '"state"' in proto.json] or mounts)[which]
    states = at._tree.get_widget_states()
    states.widgets.add(id=sender.id).json_value = "{}"
    events = states.widgets.add(id=f"$$STREAMLIT_INTERNAL_KEY_{sender.id}__events")
    events.json_trigger_value = json.dumps([{"event": event, "value": value}])
    return at._run(states)


def charts(at: AppTest) -> list[Any]:
    """What the browser is sent of each plotly chart."""
    return [chart.proto for chart in at.get("plotly_chart")]


def alts(at: AppTest) -> list[str]:
    """What each chart on screen says to those who do not see it."""
    return [chart.alt for chart in charts(at)]


def told(at: AppTest) -> list[str]:
    """The notes on screen."""
    return [message.value for message in at.info]


def of_sample(model: Model, name: str = pictures.DEFAULT) -> Activations:
    """What a model does with one of the app's sample photos."""
    return capture(model, pictures.sample(name).image)


def click(at: AppTest, figure: int | str, *points: int | dict[str, Any]) -> AppTest:
    """What the browser tells the server after a click or a drag over points of a chart.

    The chart is known by its place on the page or by its key, a point by its number in the first
    trace or by all that the browser says of it. Without points the click was beside them.
    """
    (chart,) = (
        [charts(at)[figure]]
        if isinstance(figure, int)
        else [proto for proto in charts(at) if figure in proto.id]
    )
    told = [
        {"curve_number": 0, "point_index": point} if isinstance(point, int) else point
        for point in points
    ]
    indices = [point.get("point_index", 0) for point in told]
    selection = {"points": told, "point_indices": indices, "box": [], "lasso": []}
    states = at._tree.get_widget_states()
    states.widgets.add(id=chart.id).string_value = json.dumps({"selection": selection})
    return at._run(states)


def specs(at: AppTest) -> list[str]:
    return [chart.spec for chart in charts(at)]


def figures(at: AppTest) -> list[dict[str, Any]]:
    """The figures on screen, each with its `data` and its `layout`."""
    return [json.loads(spec) for spec in specs(at)]


def numbers(value: Any) -> np.ndarray:
    """An array as plotly writes it."""
    if not isinstance(value, dict):
        return np.array([np.nan if number is None else number for number in value], float)
    flat = np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
    shape = [int(side) for side in str(value.get("shape", flat.size)).split(",")]
    return flat.reshape(shape).astype(float)


def open_data(at: AppTest, page: str) -> AppTest:
    """Open what holds the tables of a page."""
    at.session_state[f"data_{page}"] = True
    return at.run()


def provenance(at: AppTest) -> str:
    (body,) = [one.proto.body for one in at.get("html") if "<details>" in one.proto.body]
    return unescape(re.sub("<.*?>", "", body))


def complaints(at: AppTest) -> list[str]:
    return [error.value for error in at.error]


def prose(at: AppTest) -> str:
    """All Markdown on screen, without the definitions that open on hover and focus."""
    texts = (re.sub(r'<span class="meaning".*?</span>', "", text.value) for text in at.markdown)
    return "\n".join(re.sub(r"</?span[^>]*>", "", text) for text in texts)


def assert_works(at: AppTest) -> None:
    """No exception, no complaint; figures, each with alt text; what was measured."""
    assert not at.exception, [error.value for error in at.exception]
    assert not at.error, complaints(at)
    warnings = [warning.value for warning in at.warning]
    assert all("**random weights**" in warning for warning in warnings), warnings
    assert charts(at) or token_map(at) or components(at, "vitviz_anatomy")
    for chart in charts(at):
        assert re.fullmatch(r"\S[^\n]+\.", chart.alt)
        assert "nan" not in chart.alt.lower()
    assert provenance(at)


def upload(at: AppTest, name: str, data: bytes, kind: str = "image/png") -> AppTest:
    at.file_uploader(key="uploader").set_value((name, data, kind))
    return at.run()


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


MINE = encoded(picture(90, 40, seed=7))  # neither square nor like any sample


def choose(at: AppTest, model: str) -> AppTest:
    return at.selectbox(key="model").set_value(model).run()


def typed(at: AppTest, menu: str, text: str) -> AppTest:
    """Type something that is none of the options of a menu that takes more; AppTest cannot."""
    states = at._tree.get_widget_states()
    (state,) = (state for state in states.widgets if state.id == at.selectbox(key=menu).proto.id)
    state.string_value = text
    return at._run(states)


def settled(at: AppTest) -> AppTest:
    """The page once its download has ended, well or not."""
    while downloading(at):
        until(lambda: not at.session_state["download"].running)
        at.run()
    return at


def downloading(at: AppTest) -> bool:
    return any(button.key == "cancel download" for button in at.button)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
