"""Profiles of models over many pictures: those that the options name, and those that ship."""

from typing import TYPE_CHECKING

import streamlit as st

from vitviz.app.shared import models, results
from vitviz.app.shared.view import model_key
from vitviz.language import tr

if TYPE_CHECKING:
    from vitviz import Model, Profile


@st.cache_resource(show_spinner=False)
def everything() -> "list[Profile]":
    """All profiles, read once; those of the options come first."""
    from vitviz.checkpoints import assets
    from vitviz.profiling import load_profile

    shipped = sorted((assets() / "profiles").glob("*.npz"))
    return [load_profile(path) for path in (*models.options().profiles, *shipped)]


def of_model(model: "Model") -> "list[Profile]":
    """Those of these very weights, with these layers and this preprocessing; of others none."""

    def make() -> "list[Profile]":
        from vitviz.profiling import fits

        return [profile for profile in everything() if fits(profile, model)]

    return results.captures().get((*model_key(model), "profiles"), make, lambda made: 1000)


def why_none(model: "Model") -> str:
    """Why a model has no profile though there is one of its name; empty where there is none."""
    if of_model(model):
        return ""
    size = tuple(model.preprocess.input_size)
    for profile in everything():
        if profile.about["model"] == model.name:
            input_size = tuple(profile.about["preprocessing"]["input_size"])
            what = tr("other weights or another preprocessing")
            if size != input_size:
                what = tr(
                    "an input of {height} × {width} pixels",
                    height=input_size[0],
                    width=input_size[1],
                )
            over = described(profile)
            return tr(
                "The profile of {name} over {over} is not shown: it was made with {what}.",
                name=model.name,
                over=over,
                what=what,
            )
    return ""


def measured(profile: "Profile") -> int:
    """How many pictures were measured."""
    found: int = profile.about["pictures"] - profile.about["skipped"]
    return found


def count(profile: "Profile") -> str:
    """How many pictures were measured, in words."""
    return tr("{count:,} pictures", count=measured(profile))


def described(profile: "Profile") -> str:
    """The same, and where they come from."""
    return tr("{pictures} of {source}", pictures=count(profile), source=tr(profile.about["source"]))


def provenance(profile: "Profile") -> str:
    """Where the numbers of a profile come from, for the files of a page."""
    about = profile.about
    return tr(
        "a profile over {pictures}, made with vitviz {version}, of weights with sha256 {sha256}",
        pictures=described(profile),
        version=about["versions"]["vitviz"],
        sha256=about["weights_sha256"],
    )
