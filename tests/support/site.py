"""mkdocs calls this module (``hooks`` of mkdocs.yml): the site has documents that are not in docs/.

Links in a document are those of the repository, so that they work there as well. In the site docs/ is the root.
"""

import os
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]
OUTSIDE: Final = ("CONTRIBUTING.md", "SECURITY.md", "examples/**/*")
DOCS: Final = "docs/"
LINK: Final = re.compile(r"(?<=\]\()(?!#)([^)\s<>:#]+)(?=[)#])")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set where the site will be, by ``SITE_URL``: the page 404 is served at any path, so its links name the root."""
    config.site_url = os.environ.get("SITE_URL", "")
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the documents that are not in docs/, under their paths in the repository."""
    for path in sorted(path for pattern in OUTSIDE for path in ROOT.glob(pattern) if path.is_file()):
        files.append(File(path.relative_to(ROOT).as_posix(), str(ROOT), config.site_dir, use_directory_urls=False))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with its links as they are in the site."""
    return LINK.sub(lambda link: in_site(link[1], page.file.src_uri), markdown)


def in_site(target: str, page: str) -> str:
    """Turn a link of the repository into one of the site.

    Args:
        target: path relative to the document, such as ``../SECURITY.md``.
        page: path of the document in the site, such as ``start/faq.md``.
    """
    document = Path(page) if page.startswith(("CONTRIBUTING", "SECURITY", "examples/")) else Path(DOCS, page)
    path = os.path.normpath(document.parent / target).removeprefix(DOCS)
    return os.path.relpath(path, Path(page).parent)
