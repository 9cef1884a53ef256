"""Where a visitor's browser runs, who is a teacher, and at which address a class finds the server.

A server that listens beyond localhost is one for a class.
"""

import secrets
from urllib.parse import urlsplit

import streamlit as st
from streamlit.config import is_manually_set
from streamlit.net_util import get_internal_ip
from streamlit.web.server.server_util import get_url

_LOCAL = ("127.0.0.1", "::1", "localhost")
_ALL = (None, "", "0.0.0.0", "::")  # listening to all; without an address Streamlit does
_OF_PROXIES = ("forwarded", "via", "x-forwarded", "x-real-ip")  # how their headers begin
#: The key of this server's teachers, until it stops, and the cookie that holds it.
KEY = secrets.token_urlsafe(16)
COOKIE = "vitviz_teacher"


def for_class() -> bool:
    """Whether the server listens beyond localhost."""
    return st.get_option("server.address") not in _LOCAL


def asks_here() -> bool:
    """Whether the request asks for this machine by a name that is its own alone, and directly.

    A request with a header of a proxy, or that asks for another host, is none of this machine's
    reader. A proxy that hides both cannot be told.
    """
    headers = {name.lower(): value for name, value in st.context.headers.items()}
    host = urlsplit(f"//{headers.get('host', _LOCAL[0])}").hostname
    handed_on = any(name.startswith(_OF_PROXIES) for name in headers)
    return host in _LOCAL and not handed_on


def is_teacher() -> bool:
    """Whether this visitor may show the class something.

    Who sits at the machine of the server may, and who opened the link that it writes into its log.
    The address of the other end of a connection cannot be made up, unlike what a request says.
    """
    here = st.context.ip_address is None  # Streamlit's word for the loopback
    return (here and asks_here()) or is_key(str(st.context.cookies.get(COOKIE)))


def is_key(text: str) -> bool:
    return secrets.compare_digest(text.encode(), KEY.encode())


def base() -> str:
    """What every address of the app begins with: "" or "/something"."""
    path = st.get_option("server.baseUrlPath").strip("/")
    return f"/{path}" if path else ""


def lan_address() -> str | None:
    """The address for others as the server knows it; None where it has none in any network."""
    if is_manually_set("browser.serverAddress"):
        return get_url(st.get_option("browser.serverAddress"))
    host = st.get_option("server.address")
    host = (get_internal_ip() or _LOCAL[0]) if host in _ALL else host
    if host in _LOCAL:
        return None
    return get_url(f"[{host}]" if ":" in host else host)


def address() -> str | None:
    """The address for others: the operator's, else the one by which this visitor came.

    The latter is known to work, through a proxy too. One who came by a name of this machine's own
    is told the machine's address in its network.
    """
    came = urlsplit(st.context.url or "")
    if is_manually_set("browser.serverAddress") or came.hostname in (None, *_LOCAL):
        return lan_address()
    return f"{came.scheme}://{came.netloc}{base()}"
