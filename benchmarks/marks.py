"""How arms are evaluated, and which of them may share the scores of what they stand beside."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from kscout import reconstruction
from kscout.columns import columns_text
from kscout.config import AcquisitionSetting, PolicyConfig, to_table
from kscout.data.store import Store
from kscout.evaluation import AcquisitionPlan, EvaluationSetting
from kscout.evaluation.compare import request_of
from kscout.weights import fingerprint


def setting_of(
    config: PolicyConfig,
    *,
    device: str,
    limit: int | None = None,
    batch_size: int | None = None,
    n_trajectories: int = 1,
    is_argmax: bool = False,
) -> EvaluationSetting:
    """Return how a policy is evaluated: from the start and for the columns of its training.

    Args:
        config: what it was trained with.
        device: where it runs, like the rest.
        limit: test slices; all where not given.
        batch_size: slices at once.
        n_trajectories: acquisitions per slice of policies that draw.
        is_argmax: whether the best column is taken.
    """
    plan = AcquisitionPlan(
        n_initial=config.acquisition.n_initial,
        horizon=config.acquisition.horizon,
        columns_per_step=config.acquisition.group,
        n_trajectories=n_trajectories,
        is_argmax=is_argmax,
        batch_size=batch_size,
        protocol=config.training.protocol,
    )
    initial = config.acquisition.initial
    return EvaluationSetting(plan, limit=limit, device=device, initial=initial, n_examples=0)


def start_words(acquisition: AcquisitionSetting) -> str:
    """Return what `kscout evaluate` is told of the columns that an acquisition starts from."""
    if acquisition.initial is None:
        return f"--n-initial {acquisition.n_initial}"
    return f"--initial {columns_text(acquisition.start)}"


def key_of(names: Sequence[str], data: Path, reconstructor: str, setting: EvaluationSetting) -> str:
    """Return what only evaluations have in common that ask for the same, by all that counts.

    Slices and network count by what they are: a path may lead to others later. What is asked for
    as it is by default does not count, so that options that are added change no key.
    """
    network = fingerprint(reconstruction.load(reconstructor))
    told = {"data": Store.open(data).fingerprint, "reconstructor": network}
    asked = replace(request_of(names, data, reconstructor, setting), **told)
    usual = {one.name: one.default for one in fields(asked)}
    table = to_table(asked)
    changed = {key: table[key] for key in table if getattr(asked, key) != usual[key]}
    text = json.dumps(changed, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
