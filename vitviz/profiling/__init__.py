"""Measure a model over many pictures (a profile), and compare two models over the same pictures.

A profile is a sum over pictures. Parts of a list can be measured anywhere and merged.
"""

from .comparison import Answers, Comparison, compare
from .entries import Entry, ProfileError
from .faithful import Faithfulness, faithfulness, load_faithfulness
from .heads import BY_PICTURE, MEASURES
from .measuring import PIECE, Piece, measure_piece
from .pictures import list_pictures
from .results import Profile, load_profile
from .running import fits, profile
from .state import Moments, State

__all__ = [
    "BY_PICTURE",
    "MEASURES",
    "PIECE",
    "Answers",
    "Comparison",
    "Entry",
    "Faithfulness",
    "Moments",
    "Piece",
    "Profile",
    "ProfileError",
    "State",
    "compare",
    "faithfulness",
    "fits",
    "list_pictures",
    "load_faithfulness",
    "load_profile",
    "measure_piece",
    "profile",
]
