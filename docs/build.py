"""The documentation site: the reference of every public module, the gallery of figures, and the
teacher's guide with its worksheet, which print on A4.

python docs/build.py FOLDER
"""

import sys
from contextlib import chdir
from pathlib import Path

import gallery
import jinja2
import markdown2
import pdoc

import vitviz

_ALSO = ("equivariance", "report")  # which hold no public name of their own
#: Those of the public names; the app and the training are no library.
MODULES = sorted({f"vitviz.{name}" for name in (*vitviz._HOMES.values(), *vitviz._MODULES, *_ALSO)})
#: The same for pdoc, without the modules below them: a package offers all by its own name.
SHOWN = ("vitviz", "!vitviz[.].*", *MODULES, *(f"!{module}[.].*" for module in MODULES))
PAGES = ("teaching", "worksheet")  # written in Markdown beside this file


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
    write_pages(folder)


def write_pages(folder: Path) -> None:
    """Write the guide and the worksheet as pages, whose links lead to each other."""
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).parent
    loader = jinja2.FileSystemLoader(source / "templates")
    template = jinja2.Environment(loader=loader).get_template("page.html.jinja2")
    for name in PAGES:
        text = (source / f"{name}.md").read_text(encoding="utf-8")
        for other in PAGES:
            text = text.replace(f"({other}.md)", f"({other}.html)")
        content = markdown2.markdown(text, extras=["tables", "code-friendly"])
        title = next(line[2:] for line in text.splitlines() if line.startswith("# "))
        page = template.render(title=title, content=content)
        (folder / f"{name}.html").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
