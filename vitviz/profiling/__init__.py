"""Profiles: what a model does over a set of pictures, measured as it streams by.

A profile is a sum over pictures: parts of a list can be measured anywhere, and merged.
"""

from .comparing import compare
from .comparison import Answers, Comparison
from .heads import KEPT, MEASURES
from .measuring import PIECE, Piece, measured
from .pictures import Entry, ProfileError, listed
from .results import Profile, load_profile
from .running import fits, profile
from .state import Moments, State

__all__ = [
    "KEPT",
    "MEASURES",
    "PIECE",
    "Answers",
    "Comparison",
    "Entry",
    "Moments",
    "Piece",
    "Profile",
    "ProfileError",
    "State",
    "compare",
    "fits",
    "listed",
    "load_profile",
    "measured",
    "profile",
]
