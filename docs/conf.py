"""How Sphinx builds the site. `make site` copies this folder, adds the pages of the API and the gallery, and runs it there."""

import os
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

import marginlens

runs_examples = os.environ.get("MARGINLENS_SITE_RUNS_EXAMPLES", "1") == "1"

project = "marginlens"
author = "The marginlens authors"
copyright = "The marginlens authors. Licence: Apache-2.0"
release = version = marginlens.__version__
language = "en"
smartquotes = False  # names and quoted settings stay as they are typed
needs_sphinx = "8.0"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
extensions += ["marginlens_site"]
exclude_patterns = [
    "extensions",
    "examples",
    "gallery/**/*.ipynb",
    "gallery/backreferences",
    "**/sg_execution_times.rst",
    "sg_execution_times.rst",
    "**/*.py.md5",
]
suppress_warnings = ["config.cache"]  # the gallery's settings hold functions
# joblib warns when it replaces the gallery's processes that waited long.
warnings.filterwarnings("ignore", "A worker stopped while some jobs")

# ---- Markdown: as a code host shows it
myst_enable_extensions = ["dollarmath", "attrs_block", "attrs_inline"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

# ---- docstrings
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_type_aliases = {name: name for name in ("FloatArray", "IntArray", "BoolArray", "ObjectArray", "ArrayLike")}
python_use_unqualified_type_names = True
python_display_short_literal_types = True
add_module_names = False
toc_object_entries = False

# ---- pages: one theme, nothing from the network
html_theme = "furo"
html_title = "marginlens"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_extra_path = ["extra"]
html_math_renderer = "mathml"
html_show_search_summary = False  # it would fetch the pages that it found, which a page opened from a file may not
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_permalinks_icon = "#"
html_theme_options = {
    "navigation_with_keys": False,
    "light_css_variables": {
        "color-brand-primary": "#0b5c97",
        "color-brand-content": "#0b5c97",
        "font-stack": "system-ui, sans-serif",
    },
    "dark_css_variables": {"color-brand-primary": "#7cc0f2", "color-brand-content": "#7cc0f2"},
}

# ---- the gallery
sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$" if runs_examples else r"(?!)",
    "ignore_pattern": r"(__init__|conftest)\.py$|claim_pack",
    "plot_gallery": runs_examples,
    "subsection_order": "marginlens_site.group_order",
    "within_subsection_order": "FileNameSortKey",
    "nested_sections": True,
    "backreferences_dir": "gallery/backreferences",
    "doc_module": ("marginlens",),
    "reference_url": {"marginlens": None},
    "matplotlib_animations": False,
    "parallel": 2,
    "abort_on_example_error": False,
    "only_warn_on_example_error": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "remove_config_comments": True,
    "download_all_examples": False,
    "capture_repr": ("_repr_html_", "__repr__"),
    "reset_modules": ("matplotlib",),
    "default_thumb_file": str(Path(__file__).parent / "images" / "five_limits.png"),
}
