"""What stands behind the dots of the page Distance: every head over the pictures of a profile."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz.app.screens.distance_survey import (
    Variant,
)
from vitviz.app.shared import profiles
from vitviz.app.shared.view import View
from vitviz.app.widgets.profile_menu import profile_menu
from vitviz.language import Message, tr

if TYPE_CHECKING:
    from vitviz import Profile


@dataclass(frozen=True, eq=False)
class Behind:
    """Every head over the pictures of a profile.

    Attributes
    ----------
    profile : Profile
    pixels, deviation : ndarray of shape (layers, heads), pixels; NaN where there is none
        Mean and standard deviation of the distance over the pictures.
    """

    profile: "Profile"
    pixels: np.ndarray
    deviation: np.ndarray

    @property
    def drawn(self) -> tuple[str, np.ndarray, np.ndarray]:
        return profiles.count(self.profile), self.pixels, self.deviation

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """Of the table, by their headings."""
        over = profiles.measured(self.profile)
        return {
            Message("mean over {count:,} pictures, px", count=over): self.pixels,
            Message("standard deviation over {count:,} pictures, px", count=over): self.deviation,
        }


def choose(view: View, place: DeltaGenerator, variant: Variant) -> Behind | None:
    """What stands behind the dots, by a menu where the model has a profile."""
    if not profiles.of_model(view.model):
        return None
    profile = profile_menu(view, place, tr("Behind the dots"))
    if profile is None:
        return None
    measure = "distance" if variant == "renormalised" else "distance_paper"
    return Behind(profile, profile.mean(measure), profile.std(measure))


def tell(view: View, behind: Behind | None, distance: np.ndarray, measured: str) -> None:
    """Say what the bars are, and how far from them the heads lie on what was measured."""
    if behind is None:
        if told := profiles.why_none(view.model):
            st.text(told)  # plain: the names in it are not ours
        return
    words = tr(
        "Blue bars: mean ± standard deviation of each head over {profile}.",
        profile=profiles.described(behind.profile),
    )
    away = np.abs(distance - behind.pixels)
    if np.isfinite(away).any():
        layer, head = np.unravel_index(np.nanargmax(away), away.shape)
        words += tr(
            " {measured} the heads are {mean:.1f} px from that mean on average, and "
            "{most:.1f} px at most (layer {layer}, head {head}).",
            measured=measured,
            mean=np.nanmean(away),
            most=away[layer, head],
            layer=layer + 1,
            head=head + 1,
        )
    st.markdown(words)


def source(behind: Behind) -> str:
    over = profiles.count(behind.profile)
    return tr(
        "What is over {over} comes from {profile}.",
        over=over,
        profile=profiles.provenance(behind.profile),
    )
