"""What mkdocs calls while it builds the site: pages that no file holds, and links out of docs."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website.links import outside_files, with_site_links


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add what is made from the code and the records while the site is built."""
    for uri, content in outside_files().items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files of the repository lead to their copies in the site."""
    return with_site_links(markdown, page.file.src_uri)
