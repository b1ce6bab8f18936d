"""`kscout zoo`: the trained weights of the package, and their cards."""

import json
from typing import Annotated

import typer

from kscout.cli.options import AsJson


def zoo(
    name: Annotated[
        str | None, typer.Argument(help="Entry whose card is printed; by default all are listed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the trained weights of the package, or print the card of one.

    Commands accept these names wherever they accept weights.

    Example: kscout zoo knee-unet
    """
    from kscout.zoo import ZOO, zoo_card

    if name is not None:
        card = zoo_card(name)
        typer.echo(json.dumps({"name": name, "kind": ZOO[name], "card": card}) if as_json else card)
    elif as_json:
        typer.echo(json.dumps(ZOO))
    else:
        width = max(map(len, ZOO))
        for entry, kind in ZOO.items():
            typer.echo(f"{entry:<{width}}  {kind}")
