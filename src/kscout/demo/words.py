"""The paragraphs of the page, which stand in `words.toml`."""

import tomllib
from functools import cache
from pathlib import Path


def say(name: str, **values: object) -> str:
    """Return a paragraph with its numbers and names filled in."""
    return _paragraphs()[name].format(**values)


@cache
def _paragraphs() -> dict[str, str]:
    return tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
