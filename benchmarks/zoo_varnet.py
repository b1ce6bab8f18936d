"""Enter a trained `varnet` into the zoo: weights in 16 bit, and a card made from the records.

    python benchmarks/zoo_varnet.py runs/coils/heads8/varnet-seed0
    python benchmarks/zoo_varnet.py runs/coils/heads8/varnet-seed0 --data runs/coils/heads8/store

reads what `benchmarks/multicoil.py` and `benchmarks/brain13.py` recorded and writes
heads8-varnet.safetensors.xz and .md into `src/kscout/zoo`. Given a store, it also scores both
weights on its test slices, by a stage that leaves a record, too. `ZOO` there, and the table `zoo`
of `benchmarks/tables.toml`, need a line.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import brain13
import multicoil
from multicoil_records import RECORDS, image_table
from tables import markdown, number

from kscout.compressed import SUFFIX
from kscout.files import write_text
from kscout.runs import read_run
from kscout.weights import WEIGHTS_NAME, Weights, read_weights, save_weights
from kscout.zoo import zoo_file

CARD = """# {name}

An unrolled network (arXiv 2004.06688) of {n_cascades} cascades of {n_channels} channels
({n_parameters:,} parameters, sensitivities included) for complex k-space of any number of coils,
protocol `blind`. Parameters are stored in 16 bit and used in 32 bit.

    kscout.reconstruction.load("{name}")

## Data

Simulated coils around slices that `kscout data make` draws, {counts} slices for training,
validation and test (store fingerprint {store}...):

{sources}
## Commands

{commands}

One seed, {seconds:.0f} s on {device}, torch {torch}, {date}; weights of the last epoch, whose
validation SSIM over the masks of training was {val_ssim}.

## Scores

Mean SSIM over {n_slices} test slices of {n_volumes} volumes under random masks, in brackets its
95 % interval over volumes, before weights were rounded to 16 bit:

{table}
{rounded}## A real brain

docs/coils.md shows a slice of a real brain, 13 coils and 74 of 224 columns.
{brain}
## Intended use

Research on which columns to measure, with images like its training data; not clinical. Coils, phase
and noise are simulated, and it has seen few people.

License: MIT.
"""


def card(name: str, run: Path, weights: Weights, records: Path) -> str:
    """Return the card of a run of `benchmarks/multicoil.py`."""
    place = f"{name.partition('-')[0]}-seed{weights.extra['seed']}"

    def recorded(stage: str) -> dict[str, Any]:
        return json.loads((records / f"{place}-{stage}.json").read_text(encoding="utf-8"))

    store, trained, rows = map(recorded, ("store", "varnet", "reconstructions-4x"))
    sources = [(split, one) for split, own in store["results"]["sources"].items() for one in own]
    done = read_run(run)
    told = done.provenance
    return CARD.format(
        name=name,
        **{key: weights.arguments[key] for key in ("n_cascades", "n_channels")},
        n_parameters=sum(value.numel() for value in weights.state.values()),
        counts=" / ".join(map(str, store["results"]["splits"].values())),
        store=weights.extra["store"][:12],
        sources=markdown(["split", "source"], sources),
        commands="\n".join(f"    {one}" for one in (*store["commands"], *trained["commands"])),
        seconds=sum(line["time_s"] for line in done.metrics),
        device=told.device.removeprefix("cuda: "),
        torch=told.versions["torch"],
        date=told.date[:10],
        val_ssim=number(trained["results"]["val_ssim"]),
        **{key: rows["results"][0][key] for key in ("n_slices", "n_volumes")},
        table=image_table(records, place),
        rounded=rounding(records / f"{place}-rounded.json"),
        brain=brain13.words(),
    )


def rounding(record: Path) -> str:
    """Return what rounding changes, where it was recorded."""
    if not record.is_file():
        return ""
    before, after = json.loads(record.read_text(encoding="utf-8"))["results"]
    return (
        f"On {before['n_slices']} slices of {before['n_volumes']} volumes it was "
        f"{number(float(before['ssim']))} before rounding and {number(float(after['ssim']))} "
        "after it.\n\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write weights and card."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of the trained network")
    parser.add_argument("--name", default="heads8-varnet")
    parser.add_argument("--data", type=Path, help="store to compare weights on, and rounded ones")
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--out", type=Path, default=zoo_file("knee-unet").parent)
    wanted = parser.parse_args(arguments)
    weights = read_weights(wanted.run / WEIGHTS_NAME)
    state = {name: value.half() for name, value in weights.state.items()}
    file = wanted.out / f"{wanted.name}.safetensors{SUFFIX}"
    save_weights(file, replace(weights, state=state))
    if wanted.data is not None:
        out = wanted.run.with_name("images-rounded")
        judge = [
            "analyze",
            "reconstructions",
            f"varnet={wanted.run}",
            f"rounded={os.path.relpath(file)}",
        ]
        judge += [
            "--data",
            str(wanted.data),
            *multicoil.BUDGETS["4x"],
            "--device",
            "cpu",
            "--out",
            str(out),
        ]
        place = f"{wanted.name.partition('-')[0]}-seed{weights.extra['seed']}"
        record = wanted.records / f"{place}-rounded.json"
        multicoil.run("rounded", multicoil.Stage(judge, lambda: multicoil.rows(out)), record)
    text = card(wanted.name, wanted.run, weights, wanted.records)
    write_text(wanted.out / f"{wanted.name}.md", text)


if __name__ == "__main__":
    main()
