"""Files outside docs to which pages link: the site has copies under repository/."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
COPIES = "repository"
FIRST = ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "examples", "lab/results.csv")
"""In the navigation, whether or not a page links to them."""
_LINK = re.compile(r"\]\(([^)#\s]+)((?:#[^)\s]*)?)\)")


def site_uri(path: Path) -> str:
    """Return where the site has a file or folder of the repository."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    copy = Path(COPIES) / path.relative_to(ROOT)
    if path.is_dir():
        return (copy / "index.md").as_posix()
    return (copy.with_suffix(".md") if path.suffix == ".py" else copy).as_posix()


def source_of(uri: str) -> Path:
    """Return the file of the repository that a page of the site shows."""
    prefix = f"{COPIES}/"
    return ROOT / uri.removeprefix(prefix) if uri.startswith(prefix) else DOCS / uri


def _target(link: str, source: Path) -> Path | None:
    """Return the file of the repository that a link means; None for an address or none of ours."""
    if ":" in link:
        return None
    path = Path(os.path.normpath(source.parent / link))
    return path if path.is_relative_to(ROOT) and path.exists() else None


def with_site_links(text: str, uri: str) -> str:
    """Return a page whose links to files of the repository lead to pages of the site."""
    source = source_of(uri)

    def site_link(match: re.Match[str]) -> str:
        path = _target(match[1], source)
        if path is None:
            return match[0]
        return f"]({os.path.relpath(site_uri(path), Path(uri).parent)}{match[2]})"

    return _LINK.sub(site_link, text)


def _content(path: Path) -> str | bytes:
    """Return what the site shows of a file or folder of the repository."""
    if path.is_dir():
        scripts = sorted(path.glob("*.py"))
        return f"# {path.name}\n\n" + "".join(f"- [{one.name}]({one.name})\n" for one in scripts)
    if path.suffix == ".py":
        text = path.read_text(encoding="utf-8")
        return f"# {path.name}\n\n```python\n{text}```\n"
    return path.read_text(encoding="utf-8") if path.suffix == ".md" else path.read_bytes()


def outside_files() -> dict[str, str | bytes]:
    """Return, by place in the site, what pages link to outside docs, and what that links to."""
    found: dict[str, str | bytes] = {}
    pages = [(page, page.read_text(encoding="utf-8")) for page in sorted(DOCS.rglob("*.md"))]
    waiting = [ROOT / name for name in FIRST]
    while pages or waiting:
        for page, text in pages:
            linked = (_target(link, page) for link, _ in _LINK.findall(text))
            waiting += [path for path in linked if path and not path.is_relative_to(DOCS)]
        pages = []
        for path in waiting:
            if (uri := site_uri(path)) not in found:
                found[uri] = content = _content(path)
                if isinstance(content, str):
                    pages.append((path / "index.md" if path.is_dir() else path, content))
        waiting = []
    return found
