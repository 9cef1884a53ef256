"""Find weights of the Hugging Face hub in its cache, and download them.

The cache is read without the network (`weights`). A download runs the hub's own client in a
subprocess (`child`), which is monitored and ended from here (`downloading`), so that a dead network
blocks nobody longer than the timeout.
"""

from .downloading import TIMEOUT, download
from .weights import (
    HubError,
    Weights,
    find_cached,
    is_intact,
    is_known_missing,
    note_missing,
    remove_cached,
)

__all__ = [
    "TIMEOUT",
    "HubError",
    "Weights",
    "download",
    "find_cached",
    "is_intact",
    "is_known_missing",
    "note_missing",
    "remove_cached",
]
