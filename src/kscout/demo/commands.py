"""The demo as commands: what a user types to redo each step by hand."""

from pathlib import Path

from kscout.config import to_table
from kscout.data.generate import MakeSettings
from kscout.demo.settings import (
    ACCELERATIONS,
    CENTER_FRACTION,
    SHOWN_BASELINE,
    ZOO_UNET,
    DemoFolder,
    DemoSettings,
)
from kscout.evaluation.compare import EvaluationSetting, request_of
from kscout.names import ESTIMATORS
from kscout.runs import CONFIG

EVALUATE = "Evaluate all policies"


def commands_of(settings: DemoSettings, folder: DemoFolder) -> dict[str, list[str]]:
    """Return the words of each step's command line, by what the step does."""
    store, unet = folder.store, folder.unet
    found = {
        "Make the images": _make(settings.making, store),
        "Train the U-Net": _words(
            "train", "reconstructor", data=store, config=unet / CONFIG, out=unet
        ),
    }
    for method, run in folder.runs.items():
        found[f"Train the {ESTIMATORS[method].title} policy"] = _words(
            "train", "policy", data=store, reconstructor=unet, config=run / CONFIG, out=run
        )
    found["Compare reconstructions"] = _words(
        *("analyze", "reconstructions", *folder.compared),
        data=store,
        acceleration=ACCELERATIONS,
        center_fraction=CENTER_FRACTION,
        out=folder.reconstructions,
    )
    found[EVALUATE] = _evaluate(
        folder.policies, store, unet, settings.evaluation, folder.evaluation
    )
    found["Make a page of these folders"] = _words(
        "report", *map(str, folder.reported), out=folder.path / "report.html"
    )
    zoo, store = settings.paper_size, folder.zoo_store
    found["Draw test knees of the zoo"] = _make(zoo.making, store)
    for one in zoo.acquisitions:
        told = f"{one.n_initial} + {one.horizon} columns"
        found[f"Run the zoo's policies, {told}"] = _evaluate(
            one.wanted, store, ZOO_UNET, zoo.evaluation(one, one.reference), folder.zoo(one.name)
        )
        plain = folder.zoo(one.name, is_zero_filled=True)
        found[f"The same slices zero-filled, {told}"] = _evaluate(
            [SHOWN_BASELINE], store, "zero-filled", zoo.evaluation(one), plain
        )
    return found


def untrained_script(settings: DemoSettings, folder: DemoFolder) -> str:
    """Return the lines of Python that write the untrained network."""
    arguments = ", ".join(f"{key}={value}" for key, value in settings.network.arguments.items())
    return (
        "from pathlib import Path\n"
        "from kscout import policies\n"
        "from kscout.assemble import make_policy\n"
        "from kscout.config import Component\n\n"
        f"network = Component({settings.network.name!r}, dict({arguments}))\n"
        f"policy = make_policy(network, seed={settings.seed}, n_cols={settings.size})\n"
        f"policies.save(Path({str(folder.untrained)!r}), policy)"
    )


def _make(making: MakeSettings, out: Path) -> list[str]:
    volumes = ",".join(map(str, making.volumes))
    shape = {"volumes": volumes, "slices": making.slices, "size": making.size}
    return _words("data", "make", making.kind, out=out, **shape, seed=making.seed)


def _evaluate(
    wanted: list[str], data: Path, reconstructor: Path | str, setting: EvaluationSetting, out: Path
) -> list[str]:
    asked = to_table(request_of(wanted, data, reconstructor, setting))
    names = {"seed": asked.pop("seeds"), "policy": asked.pop("policies")}
    return _words("evaluate", **asked, **names, out=out)


def _words(*command: str, **options: object) -> list[str]:
    """Return a command with its options: a list is repeated, a flag has no value, None is none."""
    words = ["kscout", *command]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            values = value if isinstance(value, list | tuple) else [value]
            words += [word for one in values for word in (flag, str(one))]
    return words
