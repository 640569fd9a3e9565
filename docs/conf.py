"""How Sphinx builds the site: `make site`, or `python -m sphinx -W docs build/site` in the checkout."""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

from marginlens_site import is_alias, is_described_in

import marginlens

project = "marginlens"
author = copyright = "The marginlens authors"
release = version = marginlens.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
extensions += ["myst_parser", "sphinx_gallery.gen_gallery", "marginlens_site"]
exclude_patterns = ["README.md", "_templates", "gallery/**/*.ipynb"]
exclude_patterns += ["**/sg_execution_times.rst", "sg_execution_times.rst"]
templates_path = ["_templates"]
suppress_warnings = ["config.cache"]  # some settings hold functions
smartquotes = False  # names and quoted settings stay as they are typed
linkcheck_ignore = [r"^(\.\./)*(lab|report)/"]  # the extension writes these pages
warnings.filterwarnings("ignore", "A worker stopped while some jobs")  # joblib replaces processes that waited long

# ---- Markdown: as a code host shows it
myst_enable_extensions = ["dollarmath", "attrs_block", "attrs_inline"]
myst_heading_anchors = 3

# ---- docstrings
ALIASES = ("ArrayLike", "BoolArray", "FloatArray", "HeadLike", "IntArray", "ObjectArray", "ProgressCallback")
default_role = "code"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
autodoc_default_options = {"undoc-members": True, "show-inheritance": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_type_aliases = {name: name for name in ALIASES}
autosummary_ignore_module_all = False
autosummary_context = {"is_described_in": is_described_in, "is_alias": is_alias}
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

# ---- pages: one theme, nothing from the network
html_theme = "furo"
html_title = "marginlens"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_math_renderer = "mathml"
html_show_search_summary = False  # it would fetch the pages that it found, which a page opened from a file may not
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5c97", "color-brand-content": "#0b5c97"},
    "dark_css_variables": {"color-brand-primary": "#7cc0f2", "color-brand-content": "#7cc0f2"},
}

# ---- the gallery; `-D plot_gallery=0` leaves its scripts unrun, and their pages without pictures
GROUPS = ("selection", "optimizers", "next_tokens", "texts", "real_models")
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "subsection_order": [f"../examples/{group}" for group in GROUPS],
    "within_subsection_order": "FileNameSortKey",
    "parallel": 2,
    "show_signature": False,
    "min_reported_time": 1e9,
    "remove_config_comments": True,
    "download_all_examples": False,
    "reset_modules": ("matplotlib",),
    "default_thumb_file": str(Path(__file__).parent / "images" / "five_limits.png"),
}
