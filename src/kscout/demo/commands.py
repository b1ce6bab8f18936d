"""The demo as commands: what a user types to redo each step by hand."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from kscout.config import PolicyConfig, ReconstructorConfig
from kscout.data.generate import MakeSettings
from kscout.demo.paper_size import SHOWN_BASELINE, UNET, ZERO_FILLED, Budget, PaperSize
from kscout.demo.settings import METHODS, DemoFolder, DemoSettings

_LINE_LENGTH = 84
EVALUATE = "Evaluate all policies"


def commands_of(settings: DemoSettings, folder: DemoFolder) -> dict[str, list[str]]:
    """Return the words of each step's command line, by what the step does."""
    found = {
        "Make the images": _making(settings.making, folder.store),
        "Train the U-Net": _train_unet(settings.reconstructor, folder),
    }
    for method in METHODS:
        title = f"Train the {'greedy' if method == 'greedy' else 'non-greedy'} policy"
        found[title] = _train_policy(settings.policy(method), folder, method)
    found[EVALUATE] = _evaluate(settings, folder)
    found["Make a page of these folders"] = [
        *("kscout", "report", *map(str, folder.reported)),
        *("--out", str(folder.path / "report.html")),
    ]
    return {**found, **paper_size_commands(settings.paper_size, folder)}


def paper_size_commands(settings: PaperSize, folder: DemoFolder) -> dict[str, list[str]]:
    """Return the same of what runs at the paper's size."""
    found = {"Draw test knees of the zoo": _making(settings.making, folder.paper_store)}
    for budget in settings.budgets:
        told = f"{budget.n_initial} + {budget.horizon} columns"
        found[f"Run the zoo's policies, {told}"] = [
            *_paper_evaluation(settings, budget, folder),
            *("--reconstructor", UNET, "--reference", budget.reference),
            *("--out", str(folder.paper_evaluation(budget.name))),
            *(word for policy in budget.wanted for word in ("--policy", policy)),
        ]
        found[f"The same slices zero-filled, {told}"] = [
            *_paper_evaluation(settings, budget, folder),
            *("--reconstructor", ZERO_FILLED, "--policy", SHOWN_BASELINE),
            *("--out", str(folder.paper_evaluation(budget.name, is_zero_filled=True))),
        ]
    return found


def _paper_evaluation(settings: PaperSize, budget: Budget, folder: DemoFolder) -> list[str]:
    setting = settings.evaluation(budget)
    return [
        *("kscout", "evaluate", "--data", str(folder.paper_store)),
        *("--n-initial", str(budget.n_initial), "--steps", str(budget.horizon), "--argmax"),
        *("--trajectories", str(settings.n_trajectories)),
        *(word for seed in setting.seeds for word in ("--seed", str(seed))),
        *("--limit", str(settings.limit), "--protocol", setting.plan.protocol),
    ]


def as_shell(words: Sequence[str]) -> str:
    """Return a command as a shell takes it, in lines that fit a page; an option keeps its value."""
    parts: list[str] = []
    for word in words:
        quoted = shlex.quote(word)
        if parts and not word.startswith("--"):
            parts[-1] += f" {quoted}"
        else:
            parts.append(quoted)
    lines = parts[:1]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) < _LINE_LENGTH:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return " \\\n    ".join(lines)


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


def _making(making: MakeSettings, out: Path) -> list[str]:
    return [
        *("kscout", "data", "make", making.kind, "--out", str(out)),
        *("--volumes", ",".join(map(str, making.volumes)), "--slices", str(making.slices)),
        *("--size", str(making.size), "--seed", str(making.seed)),
    ]


def _train_unet(config: ReconstructorConfig, folder: DemoFolder) -> list[str]:
    training = config.training
    return [
        *("kscout", "train", "reconstructor", "--data", str(folder.store)),
        *("--out", str(folder.unet), "--epochs", str(training.n_epochs)),
        *("--channels", str(config.reconstructor.arguments["n_channels"])),
        *("--batch-size", str(training.batch_size), "--seed", str(training.seed)),
        *_set("reconstructor.n_pools", config.reconstructor.arguments["n_pools"]),
        *("--convolution", training.convolution),
        *_set("training.learning_rate", training.learning_rate),
        *_set("training.decay_epochs", list(training.decay_epochs)),
    ]


def _train_policy(config: PolicyConfig, folder: DemoFolder, method: str) -> list[str]:
    training, arguments = config.training, config.policy.arguments
    return [
        *("kscout", "train", "policy", "--method", method, "--data", str(folder.store)),
        *("--reconstructor", str(folder.unet), "--out", str(folder.policy(method))),
        *("--n-initial", str(config.acquisition.n_initial)),
        *("--steps", str(config.acquisition.horizon), "--epochs", str(training.n_epochs)),
        *("--batch-size", str(training.batch_size)),
        *("--trajectories", str(training.n_trajectories), "--seed", str(training.seed)),
        *_set("policy.n_channels", arguments["n_channels"]),
        *_set("policy.n_hidden", arguments["n_hidden"]),
        *("--convolution", training.convolution),
        *_set("training.learning_rate", training.learning_rate),
        *_set("training.decay_epochs", list(training.decay_epochs)),
        *_set("training.decay_factor", training.decay_factor),
        *_set("training.keep_epochs", list(training.keep_epochs)),
    ]


def _evaluate(settings: DemoSettings, folder: DemoFolder) -> list[str]:
    setting = settings.evaluation
    return [
        *("kscout", "evaluate", "--data", str(folder.store), "--reconstructor", str(folder.unet)),
        *("--n-initial", str(settings.n_initial), "--steps", str(settings.horizon)),
        *("--trajectories", str(settings.n_trajectories), "--seed", str(settings.seed)),
        *("--protocol", setting.plan.protocol, "--reference", str(setting.reference)),
        *("--fixed-slices", str(setting.n_fixed_slices), "--out", str(folder.evaluation)),
        *(word for policy in folder.policies for word in ("--policy", policy)),
    ]


def _set(key: str, value: object) -> tuple[str, str]:
    return "--set", f"{key}={json.dumps(value)}"
