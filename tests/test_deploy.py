"""What lies in deploy/, as far as it runs without containers: nginx, and a user without rights."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import build_opener, install_opener, urlopen

import numpy as np
import pytest
from app_server import HERE, ROOT, Server, free_port, serving, wait_for
from pages.driver import MINE
from visitor import Visitor
from websockets.exceptions import InvalidStatus

import vitviz
from vitviz.web.token_map import encode_frame

NOBODY = ["unshare", "--user", "--map-user=54321", "--map-group=54321"]  # not in /etc/passwd
ROUND_NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; {user}
events {{}}
http {{
    access_log off;
    {places}
    {served}
}}
"""


def nobody() -> list[str]:
    """What makes a command run by a user of no name and no rights."""
    if sys.platform != "linux" or not shutil.which("unshare"):
        pytest.skip("only Linux makes users of no name")
    if subprocess.run([*NOBODY, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody make a user namespace")
    return NOBODY


@pytest.fixture(scope="module", params=["no HOME", "a HOME that is read-only"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Below a prefix, by a user of no name, in a folder where that user may write nothing."""
    folder = tmp_path_factory.mktemp("server")
    home = folder / "home"
    home.mkdir(mode=0o555)
    kept = {name: text for name, text in os.environ.items() if name in ("PATH", "LANG")}
    env = {**kept, "PYTHONPATH": str(ROOT), "STREAMLIT_SERVER_BASE_URL_PATH": "vitviz"}
    if request.param != "no HOME":
        env["HOME"] = str(home)
    command = [*nobody(), sys.executable, "-m", "vitviz", "app"]
    log = folder / "log"
    with serving(log, command=command, env=env, cwd=home, prefix="/vitviz") as server:
        yield server


@pytest.fixture
def proxy(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of deploy/nginx.conf before the server, with TLS."""
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if nginx is None or not shutil.which("openssl"):
        pytest.skip("needs nginx and openssl")
    certificate = tmp_path / "fullchain.pem"
    key = tmp_path / "privkey.pem"
    words = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=vitviz", "-addext", f"subjectAltName=IP:{HERE}"]
    words += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", *words], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    install_opener(build_opener())  # from Python 3.12 on the last one keeps its certificates
    port, plain = free_port(), free_port()
    served = (ROOT / "deploy" / "nginx.conf").read_text()
    for said, meant in {
        "app:8501": server.url.removeprefix("http://").removesuffix("/vitviz"),
        "listen 80;": f"listen {HERE}:{plain};",
        "listen 443 ssl;": f"listen {HERE}:{port} ssl;",
        "/certificates": str(tmp_path),
    }.items():
        assert said in served
        served = served.replace(said, meant)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = " ".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)
    user = "user root;" if os.geteuid() == 0 else ""
    text = ROUND_NGINX.format(folder=tmp_path, user=user, places=places, served=served)
    (tmp_path / "nginx.conf").write_text(text)
    words = [nginx, "-p", str(tmp_path), "-c", "nginx.conf", "-e", "error.log"]
    process = subprocess.Popen(words)
    try:
        url = f"https://{HERE}:{port}/vitviz"
        wait_for(url, process, tmp_path / "error.log")
        yield url
    finally:
        process.terminate()
        process.wait()


def test_a_visitor_of_the_proxy_sees_their_picture(server: Server, proxy: str) -> None:
    """Over TLS, below a prefix, and from a server whose user has neither a name nor rights."""
    with urlopen(proxy.removesuffix("/vitviz")) as answer:
        assert answer.url == f"{proxy}/"
        assert "st-key-provenance" in answer.read().decode()
    acts = vitviz.capture(vitviz.load_model("vitviz_things200"), vitviz.open_image(MINE))
    frames = [encode_frame(layer, acts.attention(layer), 1, "share") for layer in range(acts.depth)]
    with Visitor(proxy) as visitor:
        visitor.run().upload("mine.png", MINE)
        assert visitor.provenance.endswith(" · mine.png")
        np.testing.assert_array_equal(
            visitor.codes, np.concatenate([frame.codes.ravel() for frame in frames])
        )
    assert not list(Path("/").glob("~*"))


def test_the_proxy_limits_the_pages_and_the_uploads_of_one_visitor(proxy: str) -> None:
    with ExitStack() as leaving:
        visitors = [leaving.enter_context(Visitor(proxy)) for _ in range(4)]
        with pytest.raises(InvalidStatus) as caught:
            Visitor(proxy)
        assert caught.value.response.status_code == 503
        place = "/_stcore/upload_file/nobody/one"
        said = [visitors[0].put(place, "a.png", MINE, token="1" * 32) for _ in range(15)]
        assert 429 not in said[:13]
        assert 429 in said[13:]  # one more may come in each five seconds
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"{proxy.removesuffix('/vitviz')}/elsewhere")


def test_the_entry_file_of_a_hosted_app_serves_the_pages(tmp_path: Path) -> None:
    entry = "deploy/streamlit/streamlit_app.py"
    command = [sys.executable, "-m", "streamlit", "run", entry]
    with serving(tmp_path / "log", command=command) as server:
        with urlopen(server.url) as answer:
            assert "st-key-provenance" in answer.read().decode()
        with Visitor(server.url) as visitor:
            assert visitor.run().provenance.endswith("sample: red panda")
