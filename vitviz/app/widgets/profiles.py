"""The profiles of the model on screen: those that fit it, their menu and their names."""

from typing import TYPE_CHECKING, Any

import streamlit as st

from vitviz.app.settings import setting
from vitviz.app.shared import results, started
from vitviz.app.shared.view import View, model_key
from vitviz.app.widgets.control import control
from vitviz.common.language import tr, tr_n

if TYPE_CHECKING:
    from vitviz import Model, Profile

NONE = "none"


def chosen_profile(view: View) -> "Profile | None":
    """Return the profile that is chosen in the menu; None for nothing."""
    profiles = _named_profiles(view)
    if len(profiles) == 1:  # a setting of another model stays
        return None
    return profiles[setting("profile", list(profiles), next(iter(profiles)))]


def choose_profile(view: View, at: Any, label: str) -> "Profile | None":
    """Draw the menu where there is a profile; return the chosen one, None for nothing."""
    chosen, profiles = chosen_profile(view), _named_profiles(view)
    words = describe_profile_size if len(profiles) == 2 else describe
    if len(profiles) > 1:
        control(
            "profile",
            label,
            list(profiles),
            at,
            "selectbox",
            lambda name: words(profile) if (profile := profiles[name]) else tr("nothing"),
        )
    return chosen


def _named_profiles(view: View) -> "dict[str, Profile | None]":
    """Return the profiles of the model by their names in the address, and none of them."""
    profiles = enumerate(fitting_profiles(view.model), start=1)
    return {**{str(number): profile for number, profile in profiles}, NONE: None}


@st.cache_resource(show_spinner=False)
def all_profiles() -> "list[Profile]":
    """Return all profiles, read once; those of the options come first."""
    from vitviz.common.files import assets
    from vitviz.profiling import load_profile

    shipped = sorted((assets() / "profiles").glob("*.npz"))
    return [load_profile(path) for path in (*started.options().profiles, *shipped)]


def fitting_profiles(model: "Model") -> "list[Profile]":
    """Return the profiles of these very weights, with these layers and this preprocessing."""

    def make() -> "list[Profile]":
        from vitviz.profiling import fits

        return [profile for profile in all_profiles() if fits(profile, model)]

    return results.capture_cache().get((*model_key(model), "profiles"), make)


def explain_none(model: "Model") -> str:
    """Explain why no profile fits a model, although there is one of its name; else return ""."""
    if fitting_profiles(model):
        return ""
    size = tuple(model.preprocess.input_size)
    for profile in all_profiles():
        if profile.about["model"] == model.name:
            input_size = tuple(profile.about["preprocessing"]["input_size"])
            what = tr("other weights or another preprocessing")
            if size != input_size:
                what = tr(
                    "an input of {height} × {width} pixels",
                    height=input_size[0],
                    width=input_size[1],
                )
            over = describe(profile)
            return tr(
                "The profile of {name} over {over} is not shown: it was made with {what}.",
                name=model.name,
                over=over,
                what=what,
            )
    return ""


def count_pictures(profile: "Profile") -> int:
    """Return how many pictures were measured."""
    count: int = profile.about["pictures"] - profile.about["skipped"]
    return count


def describe_profile_size(profile: "Profile") -> str:
    """Say how many pictures were measured."""
    return tr_n("{count:,} picture", "{count:,} pictures", count_pictures(profile))


def describe(profile: "Profile") -> str:
    """Say how many pictures were measured, and where they come from."""
    return tr(
        "{pictures} of {source}",
        pictures=describe_profile_size(profile),
        source=tr(profile.about["source"]),
    )


def profile_provenance(profile: "Profile") -> str:
    """Say where the numbers of a profile come from, for the files of a page."""
    about = profile.about
    return tr(
        "a profile over {pictures}, made with vitviz {version}, of weights with sha256 {sha256}",
        pictures=describe(profile),
        version=about["versions"]["vitviz"],
        sha256=about["weights_sha256"],
    )
