"""`kscout zoo`: the trained weights of the package, and their cards."""

import json
from typing import Annotated

import typer
from rich.table import Table

from kscout.cli.console import answer_console
from kscout.cli.options import AsJson


def zoo(
    name: Annotated[
        str | None, typer.Argument(help="Entry whose card is printed; by default all are listed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the trained weights of the package, or print the card of one.

    Commands accept these names wherever they accept weights. Columns are those at the start, and
    those acquired after it.

    Example: kscout zoo knee-unet
    """
    from kscout.compatibility import entry_facts
    from kscout.zoo import ZOO, zoo_card

    if name is not None:
        card = zoo_card(name)
        typer.echo(json.dumps({"name": name, "kind": ZOO[name], "card": card}) if as_json else card)
        return
    facts = {entry: entry_facts(entry) for entry in ZOO}
    if as_json:
        typer.echo(json.dumps(facts))
        return
    table = Table("name", box=None, padding=(0, 1), pad_edge=False)
    for column in next(iter(facts.values())):
        table.add_column(column)
    for entry, own in facts.items():
        table.add_row(entry, *own.values())
    table.columns[0].no_wrap = True
    answer_console().print(table)
