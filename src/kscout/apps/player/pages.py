"""Page templates shared by the report and the service."""

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def templates(package: str) -> Environment:
    """Return the templates of a package, and `base.css`, `player.css`, `player.js` of this one."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("kscout.apps.player")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
