"""The real server, spoken to without a browser: who may do what, and who sees what."""

import gzip
import html
import io
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen
from uuid import uuid4

import numpy as np
import pytest
import streamlit
from app_server import ROOT, Server, serving
from examples import assert_clear_error, picture
from pages.driver import MINE, SHIPPED, encoded
from PIL import Image
from streamlit.proto.WidgetStates_pb2 import WidgetState
from visitor import Visitor, status
from websockets.exceptions import InvalidStatus

import vitviz
from vitviz.text import classroom as text
from vitviz.web.token_map import encode_frame

EVIL = "http://evil.example"
ELSEWHERE = "127.0.0.2"  # another name of this machine, by which no teacher comes
MARKUP = "<img src=x onerror=alert(1)>"
PICTURES = [encoded(picture(90 + side, 60, seed=side)) for side in range(4)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Started as the README says. It loads torch before anybody asks, and ends quietly.

    What it has said until the first visit is kept beside its log.
    """
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log) as server:
        if sys.platform == "linux":  # which alone tells what a process does
            deadline = time.monotonic() + 60
            while "libtorch" not in Path(f"/proc/{server.pid}/maps").read_text():
                assert time.monotonic() < deadline
                time.sleep(0.1)
        with Visitor(server.url) as visitor:
            visitor.run()
        log.with_name("opening").write_text(log.read_text())
        yield server
        said = log.read_text()
    assert log.read_text().removeprefix(said).strip() in ("", "Stopping...")


@pytest.fixture(scope="module")
def for_others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that others reach, who may choose one of two models; nobody has been there."""
    words = ["--server.address", "0.0.0.0", "--browser.serverAddress", ELSEWHERE]
    words += ["--", f"--models={SHIPPED},deit_tiny_patch16_224"]
    with serving(tmp_path_factory.mktemp("server") / "log", *words) as server:
        yield server


@pytest.fixture
def visitor(server: Server) -> Iterator[Visitor]:
    with Visitor(server.url) as visitor:
        yield visitor.run()


def codes_of(data: bytes) -> np.ndarray:
    """What the token map of a picture gets, made in this process."""
    acts = vitviz.capture(vitviz.load_model(SHIPPED), vitviz.open_image(data))
    frames = [encode_frame(layer, acts.attention(layer), 1, "share") for layer in range(acts.depth)]
    return np.concatenate([frame.codes.ravel() for frame in frames])


# --- addresses ------------------------------------------------------------------------------------


def test_no_module_of_the_app_hides_one_of_python() -> None:
    """Streamlit puts the folder of the script before all others."""
    assert not {path.stem for path in (ROOT / "vitviz/app").iterdir()} & sys.stdlib_module_names


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ("/anatomy?layer=2", "/?layer=2"),
        ("/Anatomy", "/"),
        ("/TOKENS?layer=2", "/tokens?layer=2"),
        ("/", "/"),
    ],
)
def test_every_page_is_at_its_name(asked: str, place: str, server: Server) -> None:
    with urlopen(server.url + asked) as answer:
        assert answer.url == server.url + place
        said = answer.read().decode()
    assert said.index("st-key-provenance") < said.index("</head>")  # the style comes first
    assert re.search('<html [^>]*translate="no"', said)  # translated, it shows another's answer


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ("/anatomy?layer=2", "./?layer=2"),
        ("/Attention?layer=2", "./attention?layer=2"),
        ("/attention/?layer=2", "./../attention?layer=2"),
        ("/static/js/", "./../../static/js"),
    ],
)
def test_redirects_stay_behind_the_prefix_of_a_proxy(
    asked: str, place: str, server: Server
) -> None:
    with closing(HTTPConnection(urlsplit(server.url).netloc)) as connection:
        connection.request("GET", asked)
        assert connection.getresponse().headers["Location"] == place


def test_streamlits_files_are_sent_as_they_are_on_disk_packed_or_not(server: Server) -> None:
    folder = Path(streamlit.__file__).with_name("static")
    files = sorted(folder.glob("static/*/*"))[::25]
    assert len(files) > 5
    packed = 0
    for file in files:
        place = f"{server.url}/{file.relative_to(folder).as_posix()}"
        for headers in ({}, {"Accept-Encoding": "gzip"}):
            with urlopen(Request(place, headers=headers)) as answer:
                body, gzipped = answer.read(), answer.headers["Content-Encoding"] == "gzip"
            assert (gzip.decompress(body) if gzipped else body) == file.read_bytes()
            packed += gzipped
    assert packed > 3


def test_the_library_of_filters_and_tokens_is_loaded_before_they_are_seen(server: Server) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux tells what a process has loaded")
    deadline = time.monotonic() + 60
    while "/sklearn/" not in Path(f"/proc/{server.pid}/maps").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)


# --- who may --------------------------------------------------------------------------------------


def test_a_page_of_another_site_cannot_talk_to_the_server(server: Server) -> None:
    with pytest.raises(InvalidStatus) as caught:
        Visitor(server.url, origin=EVIL)
    assert caught.value.response.status_code == 403
    for path in ("health", "host-config"):
        asked = Request(f"{server.url}/_stcore/{path}", headers={"Origin": EVIL})
        with urlopen(asked) as answer:
            assert answer.headers.get("Access-Control-Allow-Origin") not in ("*", EVIL)


def test_an_upload_needs_the_token_and_a_session(visitor: Visitor) -> None:
    place = visitor.place_for("mine.png")
    assert visitor.session in place.upload_url
    for token in ("", "1" * 32):
        assert visitor.put(place.upload_url, "mine.png", MINE, token=token) == 403
    nobody = place.upload_url.replace(visitor.session, "0" * 36)
    assert visitor.put(nobody, "mine.png", MINE) == 400
    assert visitor.put(place.upload_url, "mine.png", MINE) == 204
    gone = Request(visitor.url + place.delete_url, method="DELETE")
    assert status(gone) == 403


def test_a_file_of_another_session_cannot_be_held(server: Server, visitor: Visitor) -> None:
    visitor.upload("mine.png", MINE)
    place = visitor.place_for("secret.png")
    assert visitor.put(place.upload_url, "secret.png", PICTURES[0]) == 204
    with Visitor(server.url) as other:
        before = other.run().codes
        other.hold(place, "secret.png", len(PICTURES[0]))
        other.run()
        assert other.provenance.endswith("sample: red panda")
        np.testing.assert_array_equal(other.codes, before)
    with urlopen(server.url + place.upload_url) as answer:
        assert PICTURES[0] not in answer.read()  # it is the page


# --- who sees what --------------------------------------------------------------------------------


def test_sessions_at_once_see_their_own_picture_alone(server: Server) -> None:
    def visit(number: int) -> tuple[str, np.ndarray]:
        with Visitor(server.url) as visitor:
            visitor.run().upload(f"{number}.png", PICTURES[number])
            return visitor.provenance, visitor.codes

    with ThreadPoolExecutor(len(PICTURES)) as pool:
        seen = list(pool.map(visit, range(len(PICTURES))))
    expected = [codes_of(data).astype(int) for data in PICTURES]
    for number, (line, codes) in enumerate(seen):
        assert line.endswith(f" · {number}.png")
        unlike = [int(abs(codes - other).max()) for other in expected]
        assert unlike.pop(number) <= 1  # rounding
        assert min(unlike) > 20


def test_a_files_name_and_its_exif_never_become_markup(visitor: Visitor) -> None:
    exif = Image.Exif()
    exif[0x010E] = exif[0x9286] = exif[0x013B] = MARKUP  # description, comment, artist
    file = io.BytesIO()
    picture(60, 40, seed=3).save(file, "JPEG", exif=exif)
    data = file.getvalue()
    assert MARKUP.encode() in data
    name = f"<b>{MARKUP.replace('/', '')} **x** $y$.jpg"
    visitor.upload(name, data)
    assert visitor.provenance.endswith(name)
    for kind in ("markdown", "html", "alert", "heading", "plotly_chart"):
        for element in visitor.elements(kind):
            said = str(element).replace(html.escape(name), "")  # in the provenance line, as text
            assert "onerror" not in said, kind
    for element in visitor.elements("bidi_component"):
        sent = json.loads(element.json or "{}")
        sent.pop("provenance", None)  # text of a picture that is saved, see test_pictures.py
        assert "onerror" not in f"{sent} {element.mixed.json}"
    visitor.upload(name, b"no picture")
    (said,) = visitor.complaints
    assert "onerror" not in said


def test_a_file_that_another_takes_the_place_of_is_not_kept(for_others: Server) -> None:
    """On a server that holds no files of other tests."""
    with Visitor(for_others.url) as visitor:
        visitor.run()
        for number, data in enumerate(PICTURES):
            visitor.upload(f"{number}.png", data)
        assert visitor.run().provenance.endswith(f" · {number}.png")
        assert bytes_of_uploads(for_others) == len(PICTURES[-1])


def test_a_menu_from_before_an_upload_does_not_undo_it(visitor: Visitor) -> None:
    visitor.upload("mine.png", PICTURES[0]).choose("Picture", "mine.png").run()
    visitor.upload("other.png", PICTURES[1]).run()
    assert "other.png" in visitor.provenance
    assert not visitor.complaints


def test_back_and_forward_show_what_was_at_its_default_meanwhile(visitor: Visitor) -> None:
    visitor.choose("Picture", "cat").run()
    assert visitor.query == "picture=cat"
    visitor.choose("Picture", "red panda").run()
    assert visitor.query == ""
    visitor.go_back("picture=cat")
    assert visitor.provenance.endswith(" · sample: cat")
    visitor.go_back("picture=cat&fusion=max")  # of another page
    visitor.turn_to("rollout").choose("Fuse heads by", "mean").run()
    visitor.turn_to("attention").go_back("picture=cat&fusion=max")
    assert visitor.query == "picture=cat&fusion=max"


def test_files_under_made_up_ids_do_not_add_up(for_others: Server) -> None:
    """Streamlit takes a file under any id: only the newest two of a session are kept."""
    size = 100_000
    with Visitor(for_others.url) as visitor, Visitor(for_others.url) as other:
        visitor.run()
        before = bytes_of_uploads(for_others)
        for number in range(8):
            place = f"/_stcore/upload_file/{visitor.session}/{uuid4()}"
            assert visitor.put(place, f"{number}.jpg", bytes(size)) == 204
        assert bytes_of_uploads(for_others) <= before + 2 * size
        other.run().upload("mine.png", PICTURES[1])  # and a session's own is not swept away
        assert other.provenance.endswith(" · mine.png")
        visitor.upload("mine too.png", PICTURES[2])
        assert visitor.provenance.endswith(" · mine too.png")


def bytes_of_uploads(server: Server) -> int:
    with urlopen(f"{server.url}/_stcore/metrics") as answer:
        told = answer.read().decode()
    kept = re.findall(r'cache_type="UploadedFileManager".*} (\d+)', told)
    return sum(map(int, kept))


# --- what goes wrong ------------------------------------------------------------------------------


def test_a_rerun_in_the_middle_of_a_pass_ends_with_what_was_asked_last(visitor: Visitor) -> None:
    place = visitor.place_for("mine.png")
    assert visitor.put(place.upload_url, "mine.png", PICTURES[1]) == 204
    visitor.hold(place, "mine.png", len(PICTURES[1]))
    for layer in (5, 4, 3, 2):
        visitor.choose("Layer", layer).ask()
        time.sleep(0.05)
    visitor.run()
    deadline = time.monotonic() + 60
    while "layer 2 of 6" not in visitor.provenance:
        assert time.monotonic() < deadline
        visitor.read_until("script_finished")
    assert visitor.provenance.endswith("mine.png")
    assert abs(visitor.codes - codes_of(PICTURES[1]).astype(int)).max() <= 1


def test_a_session_that_is_closed_in_its_pass_stands_in_nobodys_way(server: Server) -> None:
    open_page = partial(Visitor, server.url, "block=2", page="classify")
    with open_page() as leaving, open_page() as waiting:
        leaving.run()
        waiting.run()
        leaving.press("Hide blocks (65 passes)")
        leaving.read_progress("Pass 3 of 65")
        waiting.press("Hide blocks (65 passes)")
        waiting.read_progress("Another visitor has asked for the same")
        leaving.close()
        waiting.read_progress("Pass 1 of 65")  # and not the result of who has left
        waiting.close()
        with Visitor(server.url, "layer=2") as other:
            other.run().upload("mine.png", MINE)
            assert other.provenance.endswith("mine.png")
            assert not [text for text in other.progress if "ahead" in text]


def test_a_file_is_kept_for_the_one_who_asked_while_others_are_served(server: Server) -> None:
    with Visitor(server.url) as mine, Visitor(server.url, page="positions") as other:
        place = mine.run().make_file("Report")
        for _ in range(4):  # Streamlit alone drops the file after the second
            other.run()
        with urlopen(place) as file:
            assert file.read().startswith(b"<!doctype html>")
        mine.choose("Layer", 2).run()
        other.run()
        with pytest.raises(HTTPError, match="404"):  # it does not stay for ever
            urlopen(place)


def test_a_session_that_the_server_does_not_know_shows_the_same_view(server: Server) -> None:
    """Such is that of a page whose server was killed and came back, as in test_restart.py."""
    with Visitor(server.url) as visitor:
        visitor.run().choose("Picture", "moose").choose("Layer", 2).run()
        line, codes = visitor.provenance, visitor.codes
    unknown = visitor.session[::-1]
    with Visitor(server.url, visitor.query, session=unknown) as visitor:
        assert visitor.run().provenance == line
        np.testing.assert_array_equal(visitor.codes, codes)
        assert visitor.session != unknown


def test_the_server_is_quiet_and_follows_no_file(server: Server) -> None:
    """Where it followed files, a virtual environment flooded its log; nor is there a teacher's link
    where nobody else can come."""
    opening = server.log.with_name("opening").read_text()
    said = [line.strip() for line in opening.splitlines() if line.strip()]
    expected = (r".*server started on \S+", "You can now view .*", "URL: .*")
    assert said
    assert not [line for line in said if not any(re.fullmatch(one, line) for one in expected)]
    if sys.platform == "linux":
        opened = os.listdir(f"/proc/{server.pid}/fd")
        kinds = [os.readlink(f"/proc/{server.pid}/fd/{number}") for number in opened]
        assert kinds
        assert "anon_inode:inotify" not in kinds


# --- a class on the LAN ---------------------------------------------------------------------------


def test_a_server_for_others_offers_what_is_allowed_and_there(for_others: Server) -> None:
    with Visitor(for_others.url, "model=deit_tiny_patch16_224&layer=2") as visitor:
        visitor.run()
        (menu,) = (one for one in visitor.elements("selectbox") if one.label == "Model")
        assert list(menu.options) == [SHIPPED]
        (said,) = visitor.complaints
        assert_clear_error(said)
        assert "`vitviz fetch deit_tiny_patch16_224`" in said
        assert visitor.provenance.startswith(SHIPPED)
        assert "layer 2 of 6" in visitor.provenance
    with pytest.raises(InvalidStatus):
        Visitor(for_others.url, origin=EVIL)


@pytest.fixture
def student_url(for_others: Server) -> str:
    if sys.platform != "linux":
        pytest.skip(f"only Linux listens to {ELSEWHERE}")
    return for_others.url.replace("127.0.0.1", ELSEWHERE)


def class_buttons(visitor: Visitor) -> set[str]:
    return {button.label for button in visitor.elements("button")} & {text.PIN, text.RELEASE}


def test_a_server_for_others_has_a_teacher_who_alone_can_pin(
    for_others: Server, student_url: str
) -> None:
    """What a student's page was never given is not taken from it either."""
    with Visitor(for_others.url) as teacher, Visitor(student_url) as student:
        assert class_buttons(teacher.run()) == {text.PIN}
        assert class_buttons(student.run()) == set()
        (button,) = (one for one in teacher.elements("button") if one.label == text.PIN)
        student._widgets[button.id] = WidgetState(id=button.id, trigger_value=True)
        student.run()
        assert class_buttons(teacher.run()) == {text.PIN}
        teacher.press(text.PIN)
        teacher.read_until("script_finished")
        assert class_buttons(teacher) == {text.RELEASE}
        student.run()
        assert any(text.PINNED in one.body for one in student.elements("markdown"))
        teacher.press(text.RELEASE)
        teacher.read_until("script_finished")
    with urlopen(f"{for_others.url}/class") as answer:
        assert json.load(answer) == {"shown": 2, "guessed": 0}


def test_the_teachers_link_stands_in_the_log_and_makes_a_teacher(
    for_others: Server, student_url: str
) -> None:
    (link,) = re.findall(r"http://\S+/teacher/\S+", for_others.log.read_text())
    assert link.startswith(f"{student_url}/teacher/")
    with closing(HTTPConnection(urlsplit(link).netloc)) as asked:
        asked.request("GET", urlsplit(link).path)
        answer = asked.getresponse()
        assert (answer.status, answer.headers["Location"]) == (307, "./../")
        cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
    with Visitor(student_url, cookie=cookie.split(";")[0]) as teacher:
        assert class_buttons(teacher.run()) == {text.PIN}
    with Visitor(student_url, cookie=cookie.split(";")[0][:-1]) as student:
        assert class_buttons(student.run()) == set()
    assert status(Request(link[:-1])) == 403


# --- a long lesson --------------------------------------------------------------------------------


def test_memory_is_flat_over_50_sessions(server: Server) -> None:
    """Within 10 % of what the server holds after the first ten, its libraries loaded."""
    with Visitor(server.url) as visitor:
        visitor.run().turn_to("filters")  # scikit-learn, which comes beside the first visits
    seen = []
    for _ in range(10):
        with ExitStack() as leaving:
            visitors = [leaving.enter_context(Visitor(server.url)) for _ in range(5)]
            for visitor in visitors:
                visitor.ask()
            for visitor in visitors:
                visitor.read_until("script_finished")
                assert visitor.codes.size
        seen.append(resident(server.pid))
    assert seen[-1] <= 1.1 * seen[1]


def resident(pid: int) -> int:
    (kilobytes,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return 1024 * int(kilobytes)
