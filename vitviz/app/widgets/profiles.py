"""The profiles of the model on screen: those that fit it, their menu and their names."""

from typing import TYPE_CHECKING, Any

import streamlit as st

from vitviz.app.settings import setting
from vitviz.app.shared import results, started
from vitviz.app.shared.view import View, model_key
from vitviz.app.widgets.control import choose
from vitviz.common.language import tr

if TYPE_CHECKING:
    from vitviz import Model, Profile

NONE = "none"


def chosen_profile(view: View) -> "Profile | None":
    """Return what the menu of `choose_profile` holds, where it is not drawn."""
    found = fitting_profiles(view.model)
    if not found:
        return None
    names = [*(str(number + 1) for number in range(len(found))), NONE]
    chosen = setting("profile", names, names[0])
    return None if chosen == NONE else found[int(chosen) - 1]


def choose_profile(view: View, at: Any, label: str) -> "Profile | None":
    """Draw the menu; the profile that is chosen, None where nothing is to be shown."""
    found = dict(enumerate(fitting_profiles(view.model), start=1))
    names = [*map(str, found), NONE]
    words = describe_count if len(found) == 1 else describe
    chosen = choose(
        "profile",
        label,
        names,
        names[0],
        at,
        "selectbox",
        lambda name: tr("nothing") if name == NONE else words(found[int(name)]),
    )
    return None if chosen == NONE else found[int(chosen)]


@st.cache_resource(show_spinner=False)
def all_profiles() -> "list[Profile]":
    """Return all profiles, read once; those of the options come first."""
    from vitviz.profiling import load_profile
    from vitviz.zoo.checkpoints import assets

    shipped = sorted((assets() / "profiles").glob("*.npz"))
    return [load_profile(path) for path in (*started.options().profiles, *shipped)]


def fitting_profiles(model: "Model") -> "list[Profile]":
    """Return the profiles of these very weights, with these layers and this preprocessing."""

    def make() -> "list[Profile]":
        from vitviz.profiling import fits

        return [profile for profile in all_profiles() if fits(profile, model)]

    return results.captures().get((*model_key(model), "profiles"), make)


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
    found: int = profile.about["pictures"] - profile.about["skipped"]
    return found


def describe_count(profile: "Profile") -> str:
    """Say how many pictures were measured."""
    return tr("{count:,} pictures", count=count_pictures(profile))


def describe(profile: "Profile") -> str:
    """Say how many pictures were measured, and where they come from."""
    return tr(
        "{pictures} of {source}",
        pictures=describe_count(profile),
        source=tr(profile.about["source"]),
    )


def provenance(profile: "Profile") -> str:
    """Say where the numbers of a profile come from, for the files of a page."""
    about = profile.about
    return tr(
        "a profile over {pictures}, made with vitviz {version}, of weights with sha256 {sha256}",
        pictures=describe(profile),
        version=about["versions"]["vitviz"],
        sha256=about["weights_sha256"],
    )
