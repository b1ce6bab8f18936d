"""The demo as commands: what a user types to redo each step by hand."""

from pathlib import Path

from kscout.config import to_table
from kscout.data.making import MakeSettings
from kscout.demo.settings import (
    ACCELERATIONS,
    N_COMPARED,
    SHOWN_BASELINE,
    ZOO_UNET,
    DemoFolder,
    DemoSettings,
)
from kscout.demo.stages import CHOOSERS
from kscout.evaluation.compare import EvaluationSetting, request_of
from kscout.runs import CONFIG


def commands_of(settings: DemoSettings, folder: DemoFolder) -> dict[str, list[str]]:
    """Return the words of each step's command line, by what the step does."""
    store, unet = folder.store, folder.unet
    found = {
        "Make the images": _make(settings.making, store),
        "Train the U-Net": _words(
            "train", "reconstructor", data=store, config=unet / CONFIG, out=unet
        ),
    }
    found["Train a policy for it"] = _words(
        *("train", "policy"),
        data=store,
        reconstructor=unet,
        config=folder.policy / CONFIG,
        out=folder.policy,
    )
    for sampler, run in folder.pairs.items():
        found[f"Train the U-Net together with {CHOOSERS[sampler]}"] = _words(
            *("train", "joint"),
            data=store,
            method=sampler,
            reconstructor=unet,
            config=run / CONFIG,
            out=run,
        )
    found["Compare reconstructions"] = _words(
        *("analyze", "reconstructions", *folder.compared),
        data=store,
        acceleration=ACCELERATIONS,
        limit=N_COMPARED,
        out=folder.reconstructions,
    )
    found |= _evaluations(settings, folder)
    found["Make a page of these folders"] = _words(
        "report", *map(str, [*folder.runs, folder.evaluation]), out=folder.path / "report.html"
    )
    return found | _zoo_commands(settings, folder)


def _zoo_commands(settings: DemoSettings, folder: DemoFolder) -> dict[str, list[str]]:
    zoo, store = settings.paper_size, folder.zoo_store
    found = {
        "Draw knees that nobody saw": _make(zoo.unseen(settings.seed), folder.unseen),
        "Run the zoo's policy beside the fixed order": _evaluate(
            zoo.acquisitions[0].pair, folder.unseen, ZOO_UNET, zoo.lead, folder.lead
        ),
        "Draw test knees of the zoo": _make(zoo.making, store),
    }
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


def next_commands(settings: DemoSettings, folder: DemoFolder) -> dict[str, list[str]]:
    """Return what may be tried next with what the demo left."""
    store, unet, longer = folder.store, folder.unet, folder.path / "longer"
    first = settings.paper_size.acquisitions[0]
    return {
        "The same with other knees and other draws": _words(
            "demo", seed=settings.seed + 1, out=folder.path.with_name(f"{folder.path.name}-other")
        ),
        "Steer acquisitions yourself, in a browser": _words(
            "serve",
            reconstructor=[ZOO_UNET],
            policy=[first.policies[name] for name in (first.told, first.reference)],
            data=folder.unseen,
        ),
        "Let the policy learn longer": _words(
            *("train", "policy"),
            data=store,
            reconstructor=unet,
            config=folder.policy / CONFIG,
            epochs=4,
            out=longer,
        ),
        "Compare it": _evaluate(
            [str(longer), "fixed"],
            store,
            unet,
            settings.evaluation,
            folder.path / "evaluation-longer",
        ),
    }


def _evaluations(settings: DemoSettings, folder: DemoFolder) -> dict[str, list[str]]:
    store, unet = folder.store, folder.unet
    found = {
        "Run policies on unseen knees": _evaluate(
            folder.policies, store, unet, settings.evaluation, folder.evaluation
        ),
        "Run the oracle on a few of them": _evaluate(
            folder.bounded, store, unet, settings.headroom, folder.headroom
        ),
    }
    for sampler, run in folder.pairs.items():
        found[f"Run what learned together with {CHOOSERS[sampler]}"] = _evaluate(
            folder.paired(sampler), store, run, settings.evaluation, folder.joint[sampler]
        )
    return found


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
