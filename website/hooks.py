"""What mkdocs calls while it builds the site: pages that no file holds, and links out of docs."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website.api import api_pages, missing_members
from website.command_line import command_line_page
from website.drawings import DRAWINGS, palette, with_drawings
from website.links import outside_files, with_site_links
from website.player import with_player
from website.settings import settings_page
from website.tutorials import PAGES, with_markers, with_outputs

TUTORIALS = {f"tutorials/{page.name}": page for page in PAGES}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add what is made from the code while the site is built."""
    made = {
        "palette.css": palette(),
        "reference/cli.md": command_line_page(),
        "reference/settings.md": settings_page(),
        **api_pages(),
        **outside_files(),
    }
    for uri, content in made.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files of the repository lead to their copies in the site."""
    if tutorial := TUTORIALS.get(page.file.src_uri):
        name = tutorial.with_suffix(".ipynb").name
        markdown = f"{with_markers(markdown)}\n\n[This page as a notebook]({name})\n"
    return with_site_links(markdown, page.file.src_uri)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Refuse a page of the Python reference that lacks a public name."""
    uri = page.file.src_uri
    if uri.startswith("reference/api/") and (lost := missing_members(Path(uri).stem, html)):
        raise PluginError(f"{uri} does not show {', '.join(lost)}; where are they defined?")
    return html


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Put drawings in their places, last of all: search need not read them."""
    if tutorial := TUTORIALS.get(page.file.src_uri):
        return with_outputs(output, tutorial)
    return with_player(with_drawings(output, lambda name: DRAWINGS[name]()))
