"""Weights on the Hugging Face hub: looked up in its cache, and downloaded.

The cache is asked without the network (`weights`). A download runs the hub's own client in a
subprocess (`child`), which is watched and ended from here (`downloading`), so that a dead network
blocks nobody longer than the timeout that was asked for.
"""

from .downloading import TIMEOUT, download
from .weights import HubError, Weights, cached, remove, undamaged

__all__ = ["TIMEOUT", "HubError", "Weights", "cached", "download", "remove", "undamaged"]
