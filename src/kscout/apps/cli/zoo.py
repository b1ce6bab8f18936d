"""`kscout zoo`: the trained weights of the package, and their cards."""

import json
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.table import Table

from kscout.apps.cli.console import answer_console
from kscout.apps.cli.options import AsJson, from_fields
from kscout.config.forms import Form


@dataclass(frozen=True, kw_only=True)
class _ZooOptions:
    name: Annotated[str | None, Form(is_argument=True)] = None
    """Entry whose card is printed; by default all are listed."""
    as_json: AsJson = False


@from_fields
def zoo(options: _ZooOptions) -> None:
    """List the trained weights of the package, or print the card of one.

    Commands accept these names wherever they accept weights. Columns are those at the start, and
    those acquired after it.

    Example: kscout zoo knee-unet
    """
    from kscout.compatibility import entry_facts
    from kscout.zoo import ZOO, zoo_card

    if (name := options.name) is not None:
        card = zoo_card(name)
        facts = {"name": name, "kind": ZOO[name], "card": card}
        typer.echo(json.dumps(facts) if options.as_json else card)
        return
    entries = {entry: entry_facts(entry) for entry in ZOO}
    if options.as_json:
        typer.echo(json.dumps(entries))
        return
    table = Table("name", box=None, padding=(0, 1), pad_edge=False)
    for column in next(iter(entries.values())):
        table.add_column(column)
    for entry, own in entries.items():
        table.add_row(entry, *own.values())
    table.columns[0].no_wrap = True
    answer_console().print(table)
