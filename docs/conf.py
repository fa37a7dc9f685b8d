"""The book: `make docs` runs every page and writes it to docs/_build/html. It needs no network."""

import logging
import os
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

project = "Lagformer"
author = "the Lagformer developers"
copyright = author
exclude_patterns = ["_build"]
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "mathml",
    "notebook_link",
    "plain_docstrings",
]

# ------------------------------------------------------------------------------------------- pages
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
highlight_language = "none"  # indented blocks hold formulae
nb_execution_mode = "auto"
nb_execution_timeout = 600  # seconds a cell; on an idle machine each takes a few
nb_execution_raise_on_error = True
nb_merge_streams = True
# What the pages' kernels inherit: figures in one style, one thread each, and nothing of the home
# they are built in, neither IPython's settings nor the judge's file of solved exercises.
_scratch = tempfile.TemporaryDirectory()
_profile = Path(_scratch.name, "profile_default")
_profile.mkdir()
(_profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 'ERROR'\n")
os.environ["IPYTHONDIR"] = _scratch.name
os.environ["PROGRESS_PATH"] = str(Path(_scratch.name, "progress.json"))
os.environ["MATPLOTLIBRC"] = str(DOCS / "matplotlibrc")
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.pop("MPLBACKEND", None)  # the kernels draw into the page
logging.getLogger("traitlets").setLevel(logging.WARNING)

# ----------------------------------------------------------------------------------- API reference
nitpicky = True
# The books of other packages are not linked: that would need their indices from the network.
nitpick_ignore_regex = [("py:.*", r"(?!lagformer).*")]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
python_maximum_signature_line_length = 80

# -------------------------------------------------------------------------------------------- HTML
html_theme = "furo"
html_title = "Lagformer"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_copy_source = False
html_show_sphinx = False
