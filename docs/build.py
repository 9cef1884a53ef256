"""The documentation site: the reference of every public module, and the gallery of figures.

python docs/build.py FOLDER
"""

import sys
from contextlib import chdir
from pathlib import Path

import gallery
import pdoc

import vitviz

_ALSO = ("equivariance", "report")  # which hold no public name of their own
#: Those of the public names; the app and the training are no library.
MODULES = sorted({f"vitviz.{name}" for name in (*vitviz._HOMES.values(), *vitviz._MODULES, *_ALSO)})
#: The same for pdoc, without the modules below them: a package offers all by its own name.
SHOWN = ("vitviz", "!vitviz[.].*", *MODULES, *(f"!{module}[.].*" for module in MODULES))


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
    folder = folder.absolute()
    with chdir(Path(__file__).parent):  # where no folder has the name of the package
        pdoc.pdoc(*SHOWN, output_directory=folder)
    gallery.write(folder)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
