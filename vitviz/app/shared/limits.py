"""Limits of a public server, each switched on by the operator: visitors, uploads and seconds.

Uploads and seconds are counted by address, as whoever opens the page anew is another session. A
teacher is never limited.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Collection
from functools import cache
from ipaddress import ip_address, ip_network

from streamlit import runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx

from vitviz.app.options import OptionError, Options
from vitviz.app.shared import visitors
from vitviz.app.shared.started import options
from vitviz.common.language import LANGUAGES, tr, use_language

IDLE = 600.0  # seconds after which a visitor who does nothing makes room for one who waits
MAX_WAITING_VISITORS = 100  # visitors who wait to be let in
_WINDOW = 60  # minutes


class Allowance:
    """Counts what each visitor has used in the last hour."""

    def __init__(self, most: float) -> None:
        self.most = most
        self._used: dict[str, dict[int, float]] = defaultdict(dict)  # by visitor, then by minute
        self._lock = threading.Lock()

    def spend(self, visitor: str, amount: float) -> None:
        now = _minute()
        with self._lock:
            for one in [one for one, used in self._used.items() if max(used) <= now - _WINDOW]:
                del self._used[one]
            used = self._used[visitor]
            used[now] = used.get(now, 0) + amount
            for old in [minute for minute in used if minute <= now - _WINDOW]:
                del used[old]

    def minutes_to_wait(self, visitor: str) -> int:
        """Return the minutes until a visitor may compute more; 0 if they may now."""
        now = _minute()
        with self._lock:
            spent = sorted(self._used.get(visitor, {}).items())
        recent = [(minute, amount) for minute, amount in spent if minute > now - _WINDOW]
        left = sum(amount for _, amount in recent)
        wait = 0
        for minute, amount in recent:
            if left < self.most:
                break
            left -= amount
            wait = minute + _WINDOW - now
        return wait


def _minute() -> int:
    return int(time.monotonic() // 60)


class Door:
    """Lets in so many visitors at once, in the order in which they came."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._inside: dict[str, float] = {}  # when each session last did something
        self._line: list[str] = []
        self._lock = threading.Lock()

    def place(self, session: str, present: Collection[str]) -> int:
        """Return a visitor's place in the line, from 1; 0 if they are in.

        Parameters
        ----------
        present : the sessions whose pages are open
        """
        with self._lock:
            self._inside = {one: at for one, at in self._inside.items() if one in present}
            self._line = [one for one in self._line if one in present]
            if session in self._inside:
                self._inside[session] = time.monotonic()
                return 0
            if session not in self._line:
                self._line.append(session)
            while self._line and self._make_room():
                self._inside[self._line.pop(0)] = time.monotonic()
            return 0 if session in self._inside else self._line.index(session) + 1

    def _make_room(self) -> bool:
        """Return whether one more may enter; whoever was idle for too long has to leave."""
        if len(self._inside) < self.most:
            return True
        idlest = min(self._inside, key=self._inside.__getitem__)
        if time.monotonic() - self._inside[idlest] < IDLE:
            return False
        del self._inside[idlest]
        return True


@cache
def _door(most: int) -> Door:
    return Door(most)


@cache
def _allowance(name: str, most: int) -> Allowance:
    return Allowance(most)


def uploads() -> Allowance | None:
    """Return what counts the pictures that visitors send; None without a limit."""
    most = _options().visitor_uploads
    return None if most is None else _allowance("uploads", most)


def seconds() -> Allowance | None:
    """Return what counts the seconds that are computed for visitors; None without a limit."""
    most = _options().visitor_seconds
    return None if most is None else _allowance("seconds", most)


def place_in_line() -> int:
    """Return this visitor's place in the line before a server that is full; 0 if they are in."""
    most, context = _options().max_visitors, get_script_run_ctx()
    if most is None or context is None or visitors.is_teacher():
        return 0
    return _door(most).place(context.session_id, _present())


def is_overrun() -> bool:
    """Return whether so many are in and in line that nobody else may even wait."""
    most = _options().max_visitors
    return most is not None and len(_present()) >= most + MAX_WAITING_VISITORS


def explain_uploads(minutes: int) -> str:
    return tr(
        "Pictures that you have sent in an hour: {most} of {most}. The next one can come in "
        "{minutes} min.",
        most=_options().visitor_uploads,
        minutes=minutes,
    )


def refusal_of_uploads() -> str:
    """Say that this visitor has sent as many pictures as they may; "" if not."""
    allowance, who = uploads(), visitor()
    if allowance is None or who is None:
        return ""
    minutes = allowance.minutes_to_wait(who)
    return explain_uploads(minutes) if minutes else ""


def explain_full() -> dict[str, str]:
    """Say in each language that the server is full."""
    texts = {}
    for code in LANGUAGES:
        with use_language(code):
            texts[code] = tr(
                "This server is full: it lets in {most} at a time.",
                most=_options().max_visitors,
            )
    return texts


def full_page() -> str:
    """Return the HTML that says so to those for whom there is no place in the line either."""
    paragraphs = "".join(f'<p lang="{code}">{words}</p>' for code, words in explain_full().items())
    return (
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>vitviz</title>'
        f'<meta http-equiv="refresh" content="60"><h1>vitviz</h1>{paragraphs}</html>'
    )


def _options() -> Options:
    try:
        return options()
    except OptionError:  # the page says it
        return Options()


def _present() -> set[str]:
    if not runtime.exists():  # in a test without a server
        return set()
    sessions = runtime.get_instance()._session_mgr.list_active_sessions()
    return {info.session.id for info in sessions}


def visitor() -> str | None:
    """Return by what this visitor is counted; None for a teacher, and outside of a page."""
    if get_script_run_ctx() is None or visitors.is_teacher():
        return None
    return name_of(visitors.remote_address())


def name_of(address: str) -> str:
    """Return the address, or the network of one household where everyone in it has many."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return str(ip_network(f"{parsed}/64", strict=False)) if parsed.version == 6 else address
