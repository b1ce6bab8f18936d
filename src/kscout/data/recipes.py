"""Recipes of stores: whether two make the same slices, and in what they differ."""

from typing import Any


def refuses_bad(recipe: dict[str, Any]) -> bool:
    """Say whether a recipe stops at bad input, where others leave it out."""
    return recipe.get("settings", {}).get("skip_bad") is False


def is_alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Say whether two recipes store the same slices; `--skip-bad` matters for bad input only."""
    return _deciding(one) == _deciding(other)


def _deciding(recipe: dict[str, Any]) -> dict[str, Any]:
    settings = recipe.get("settings", {})
    return {**recipe, "settings": {k: v for k, v in settings.items() if k != "skip_bad"}}


def difference(there: dict[str, Any], here: dict[str, Any]) -> str:
    """Name the first setting in which two recipes differ."""
    if not is_alike(there, here):
        there, here = _deciding(there), _deciding(here)
    one, other = ({**recipe, **recipe.get("settings", {})} for recipe in (there, here))
    for name in dict.fromkeys([*one, *other]):
        if name not in ("settings", "files_sha256") and one.get(name) != other.get(name):
            return f"{name} is {one.get(name)!r} there and {other.get(name)!r} here"
    return "made of other files" if there != here else "made by the same settings"
