"""Build the documentation site: the reference of every public module, the gallery of figures, and
every page that README.md leads to.

python docs/build.py FOLDER
"""

import argparse
import html
import json
import re
import shutil
from contextlib import chdir
from pathlib import Path
from urllib.parse import unquote

import gallery
import jinja2
import markdown2
import pdoc

import vitviz

ROOT = Path(__file__).parents[1]
#: The modules with public names. The app and the training are no library.
MODULES = sorted(
    {getattr(vitviz, name).__name__ for name in vitviz._MODULES}
    | {f"vitviz.{home}" for name, home in vitviz._HOMES.items() if name in vitviz.__all__}
)
#: The same for pdoc, without the modules below each: a package offers all by its own name.
SHOWN = (
    *("vitviz", "!vitviz[.].*"),
    *(spec for module in MODULES for spec in (module, f"!{module}[.].*")),
)
#: Links to other files: in Markdown, and in HTML, where those that a script fills begin with "$".
_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s]+)\)")
_EXTRAS = ["tables", "code-friendly", "fenced-code-blocks", "header-ids"]
_HEADING = re.compile(r'<h[12] id="([^"]*)">(.*?)</h[12]>')
_ADDRESS = re.compile(r'(?:href|src)="(?!\w+:|\$)([^"#?]*)(?:\?[^"#]*)?(?:#([^"]+))?"')
_ANCHOR = re.compile(r'\b(?:id|name)="([^"]+)"')


def build(folder: Path) -> None:
    """Write the site, whose first page is index.html, and check its links.

    Raises
    ------
    FileNotFoundError
        When a link leads to no file.
    """
    for name in vitviz.__all__:  # the package imports each when it is first used
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
    if broken := broken_links(folder):
        raise FileNotFoundError(f"These links lead nowhere: {broken}.")


def write_pages(folder: Path) -> list[Path]:
    """Write README.md and every file that it leads to, and return the pages of Markdown.

    The list of their sections, in which every page searches, is a script: a page that is opened
    from disk may load scripts, and no other files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    templates = Path(__file__).parent / "templates"
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(templates))
    template = environment.get_template("page.html.jinja2")
    pages, sections = [ROOT / "README.md"], []
    for page in pages:  # which grows
        text = page.read_text(encoding="utf-8")
        text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)  # for hubs, not readers
        for file in {(page.parent / link).resolve() for link in _LINK.findall(text)} - {*pages}:
            if file.suffix == ".md":
                pages.append(file)
            else:
                shutil.copy(file, folder / file.name)
        text = _LINK.sub(lambda link: f"]({_address(Path(link[1]))})", text)
        content = markdown2.markdown(text, extras=_EXTRAS)
        title = next(line[2:] for line in text.splitlines() if line.startswith("# "))
        whole = template.render(title=title, content=content, version=vitviz.__version__)
        (folder / _address(page)).write_text(whole, encoding="utf-8")
        _, *parts = _HEADING.split(content)
        for anchor, heading, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            place, name = f"{_address(page)}#{anchor}", _plain(heading)
            sections.append({"page": title, "name": name, "place": place, "text": _plain(body)})
    lines = f"const SECTIONS = {json.dumps(sections)};\n"
    (folder / "sections.js").write_text(lines, encoding="utf-8")
    shutil.copy(templates / "find.js", folder)
    return pages


def _plain(markup: str) -> str:
    """Return the text of HTML."""
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", markup)).split())


def _address(file: Path) -> str:
    """Return the name that a file has on the site."""
    if file.suffix != ".md":
        return file.name
    return "index.html" if file.name == "README.md" else f"{file.stem.lower()}.html"


def broken_links(folder: Path) -> list[str]:
    """Return each link between files of the site that leads to no file, or to no place in it."""
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(folder.rglob("*.html"))}
    anchors = {page.resolve(): {*_ANCHOR.findall(text)} for page, text in pages.items()}
    broken = []
    for page, text in pages.items():
        for link, anchor in sorted({*_ADDRESS.findall(text)}):
            file = (page.parent / unquote(link)).resolve() if link else page.resolve()
            if not file.exists() or (anchor and unquote(anchor) not in anchors.get(file, {anchor})):
                place = f"#{anchor}" if anchor else ""
                broken.append(f"{page.relative_to(folder)} -> {link}{place}")
    return broken


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where the site is written")
    build(parser.parse_args().folder)
