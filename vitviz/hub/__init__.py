"""Weights on the hub: where they are, whether they are on this disk, and how they come here.

What is on disk is told without the network (`weights`). What is not is fetched by the hub's own
client in a process of its own (`child`), which is watched and ended from here (`downloading`): a
dead network then costs nobody more than the patience that was asked for.
"""

from .downloading import PATIENCE, download
from .weights import HubError, Weights, cached, remove, undamaged

__all__ = ["PATIENCE", "HubError", "Weights", "cached", "download", "remove", "undamaged"]
