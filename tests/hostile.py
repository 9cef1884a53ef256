"""Names as a model's configuration or a visitor's file may have them: text, and never markup.

None is longer than what a figure shows of a name.
"""

ELSEWHERE = "http://n.invalid"  # where nothing may be asked for

NAMES = (
    f"![]({ELSEWHERE})",
    "![x][y] [y]",
    "<img src=/x>",
    "<img src=//n.invalid>",
    "<b>bold</b>",
    "<a href=x>link</a>",
    "<script>alert(1)",
    "<style>*{top:0}",
    "<br>",
    "a<sub>b</sub>c",
    "&lt;b&gt;",
    "&#60;i&#62;",
    "&amp;amp;",
    "$5$",
    "$$x^2$$",
    r"$\frac{1}{2}$",
    "*",
    "*emphasis*",
    "**bold**",
    "__init__",
    "~~gone~~",
    "`code`",
    "``two`` ticks",
    "# heading",
    "> quotation",
    "- item",
    "1. item",
    "2) item",
    "+ item",
    "| a | b |",
    "[link](x)",
    "[x]: y",
    ":red[red]",
    ":material/home:",
    ":smile:",
    "a -> b <-> c",
    "a -- b >= c",
    "www.n.invalid",
    "me@n.invalid",
    "%{y} {x} %d",
)
assert len(NAMES) == 40
