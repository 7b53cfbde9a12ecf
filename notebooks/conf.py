"""How Sphinx builds the book: ``sphinx-build -W notebooks build/book``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import reference

project = "hybridflow"
extensions = ["myst_nb"]
html_theme = "furo"
html_title = "hybridflow"
html_show_copyright = False
html_static_path = ["book.css"]
html_css_files = ["book.css"]
exclude_patterns = ["reference.py"]
nb_execution_mode = "off"  # the tests run every page
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
highlight_language = "none"


def setup(app):
    """Write the API reference before the pages are read, take links to other files as they are, and close up code."""
    app.connect("builder-inited", lambda app: reference.write(Path(app.srcdir) / "api"))
    app.connect("source-read", reference.link_out)
    app.connect("source-read", reference.close_up)
