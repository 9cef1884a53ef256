"""Where a visitor's browser runs, who is a teacher, and at which address a class finds the server.

A server that listens beyond localhost is one for a class.
"""

import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

import streamlit as st
from starlette.requests import Request
from streamlit.config import is_manually_set
from streamlit.net_util import get_internal_ip
from streamlit.web.server.server_util import get_url

from vitviz.app.pages import PAGES

_LOCAL = ("127.0.0.1", "::1", "localhost")
_ALL = (None, "", "0.0.0.0", "::")  # listening to all; without an address Streamlit does
_OF_PROXIES = ("forwarded", "via", "x-forwarded", "x-real-ip")  # how their headers begin
#: The key of this server's teachers, until it stops, and the cookie that holds it.
LINK_KEY = secrets.token_urlsafe(16)
COOKIE = "vitviz_teacher"
#: The cookie by which a browser whose page is opened anew is known; its value is random.
BROWSER_COOKIE = "vitviz_browser"


def for_class() -> bool:
    """Return whether the server listens beyond localhost."""
    return st.get_option("server.address") not in _LOCAL


def is_local_request() -> bool:
    """Return whether the request names localhost and came without a proxy.

    A proxy is known by its headers, or by the host that it asks for; one that hides both is not
    noticed.
    """
    return _is_local(st.context.headers)


def _is_local(request: Mapping[str, str]) -> bool:
    headers = {name.lower(): value for name, value in request.items()}
    host = urlsplit(f"//{headers.get('host', _LOCAL[0])}").hostname
    handed_on = any(name.startswith(_OF_PROXIES) for name in headers)
    return host in _LOCAL and not handed_on


def may_use_camera() -> bool:
    """Return whether browsers give this page the camera: by HTTPS, or on this machine."""
    came = urlsplit(st.context.url or f"http://{_LOCAL[0]}")
    return came.scheme == "https" or came.hostname in _LOCAL


def is_teacher() -> bool:
    """Return whether the visitor is at the server's own machine or holds the teacher's link.

    The link is printed at start-up. The address of a connection cannot be forged, unlike headers.
    """
    return _teaches(remote_address(), st.context.headers, st.context.cookies)


def is_teachers_request(request: Request) -> bool:
    """Return whether a request outside of a page, such as an upload, comes from a teacher."""
    return _teaches(address_of(request), request.headers, request.cookies)


def _teaches(address: str, headers: Mapping[str, str], cookies: Mapping[str, str]) -> bool:
    return (address in _LOCAL and _is_local(headers)) or is_key(str(cookies.get(COOKIE)))


def remote_address() -> str:
    """Return the address of the browser, or of a proxy that this server does not know."""
    return st.context.ip_address or _LOCAL[0]  # Streamlit names no loopback


def address_of(request: Request) -> str:
    """Return the address of the browser that sent a request outside of a page."""
    return request.client.host if request.client else _LOCAL[0]


def is_key(text: str) -> bool:
    return secrets.compare_digest(text.encode(), LINK_KEY.encode())


def base_path() -> str:
    """Return what every path of the app begins with: "" or "/something"."""
    path = st.get_option("server.baseUrlPath").strip("/")
    return f"/{path}" if path else ""


def _url(host: str) -> str:
    """Return the app's URL at a host; an address of IPv6 stands in brackets there."""
    bare = host.strip("[]")
    return get_url(f"[{bare}]" if ":" in bare else host)


def local_address() -> str:
    """Return the URL that a browser on the server's own machine opens."""
    host = st.get_option("server.address")
    return _url(st.get_option("browser.serverAddress") if host in _ALL else host)


def lan_address() -> str | None:
    """Return the server's address in its network; None if it has none."""
    if is_manually_set("browser.serverAddress"):
        return _url(st.get_option("browser.serverAddress"))
    host = st.get_option("server.address")
    host = (get_internal_ip() or _LOCAL[0]) if host in _ALL else host
    return None if host in _LOCAL else _url(host)


def address() -> str | None:
    """Return the address for others: the operator's, else the one by which this visitor came.

    The latter is known to work, through a proxy too. For a visitor on localhost it is the
    machine's address in its network.
    """
    came = urlsplit(st.context.url or "")
    if is_manually_set("browser.serverAddress") or came.hostname in (None, *_LOCAL):
        return lan_address()
    above, _, page = came.path.rstrip("/").rpartition("/")
    path = above if page in PAGES else came.path.rstrip("/")
    return f"{came.scheme}://{came.netloc}{path}"
