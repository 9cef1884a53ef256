"""The menu of the profiles of the model on screen."""

from typing import TYPE_CHECKING

from streamlit.delta_generator import DeltaGenerator

from vitviz.app.settings import setting
from vitviz.app.shared import profiles
from vitviz.app.shared.view import View
from vitviz.language import tr

if TYPE_CHECKING:
    from vitviz import Profile

NONE = "none"


def profile_menu(view: View, place: DeltaGenerator, label: str) -> "Profile | None":
    """Draw the menu; the profile that is chosen, None where nothing is to be shown."""
    found = dict(enumerate(profiles.of_model(view.model), start=1))
    names = [*map(str, found), NONE]
    chosen = setting("profile", names, names[0])
    words = profiles.count if len(found) == 1 else profiles.described
    place.selectbox(
        label,
        names,
        key="profile",
        format_func=lambda name: tr("nothing") if name == NONE else words(found[int(name)]),
    )
    return None if chosen == NONE else found[int(chosen)]
