"""The documentation site: the reference of every public module, and the gallery of figures.

python docs/build.py FOLDER
"""

import sys
from pathlib import Path

import gallery
import pdoc

import vitviz

#: The modules that the README names; the app and the training are no library.
MODULES = (
    "vitviz",
    *("vitviz.activations", "vitviz.attribution", "vitviz.equivariance", "vitviz.families"),
    *("vitviz.images", "vitviz.inspection", "vitviz.intervention", "vitviz.model", "vitviz.plots"),
    *("vitviz.profiling", "vitviz.report", "vitviz.vit", "vitviz.zoo"),
)
#: The same for pdoc, without the modules below them: a package offers all by its own name.
SHOWN = ("vitviz", "!vitviz[.].*", *MODULES[1:], *(f"!{module}[.].*" for module in MODULES[1:]))


def build(folder: Path) -> None:
    """Write the site; its first page is index.html."""
    for name in vitviz.__all__:  # which are imported when they are first asked for
        setattr(vitviz, name, getattr(vitviz, name))
    pdoc.render.configure(
        docformat="numpy",
        template_directory=Path(__file__).parent / "templates",
        footer_text=f"vitviz {vitviz.__version__}",
        show_source=True,
    )
    pdoc.pdoc(*SHOWN, output_directory=folder)
    gallery.write(folder)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
