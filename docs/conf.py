"""Settings of the site (`make docs`); what is generated is in `_site`."""

import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent / "_site")]

import lessons  # noqa: E402

import vitlab  # noqa: E402

project = "vitlab"
author = "The vitlab contributors"
copyright = author
release = version = vitlab.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton", "site_hooks"]
exclude_patterns = ["_site"]
highlight_language = "none"
default_role = "code"  # `name` in docstrings, as in Markdown
smartquotes = False  # --option, not an en dash

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
myst_fence_as_directive = ["mermaid"]

# Lessons are notebooks with the outputs of their page, which tests/test_learn.py compares with a
# run; `EXECUTE=force make docs` runs them all instead.
nb_custom_formats = {
    f"learn/{name}.md": ["lessons.read", {"name": name}] for name in lessons.names()
}
nb_execution_mode = os.environ.get("EXECUTE", "off")
nb_execution_excludepatterns = ["zh/*"]
nb_execution_timeout = 600
nb_execution_in_temp = False

autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = f"vitlab {release}"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_theme_options = {"top_of_page_buttons": []}
html_copy_source = False
