"""Fixed orders fitted for an evaluation, stored in files named by their dependencies."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from kscout.acquisition.plan import Plan
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.evaluation.running.trajectories import n_at_once
from kscout.files import read_record, write_json
from kscout.json_types import JsonObject
from kscout.physics.sampling import start_mask
from kscout.training.fixed_order import fit_fixed_order
from kscout.weights import SCHEMA_VERSION, fingerprint

ORDERS = "orders"
"""Folder next to the results with fitted orders."""


def fitted_order(
    slices: SliceSet,
    reconstructor: Reconstructor,
    plan: Plan,
    *,
    n_slices_per_step: int | None = None,
    cache: Path | None = None,
    on_step: Callable[[JsonObject], None] | None = None,
) -> list[int]:
    """Return the order fitted on `slices`, from the folder `cache` if it was fitted before."""
    depends_on = {
        "slices": slices.fingerprint,
        "reconstructor": fingerprint(reconstructor),
        "n_initial": plan.n_initial,
        "horizon": plan.horizon,
        "protocol": plan.protocol,
        "n_slices_per_step": n_slices_per_step,
        # The seed has an effect only if slices are sampled.
        "seed": None if n_slices_per_step is None else plan.seed,
        # Omitted if it is central, as in the names of existing files.
        **({"initial": plan.starts} if plan.starts else {}),
    }
    key = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:16]
    file = None if cache is None else cache / f"order-{key}.json"
    # A damaged file counts as missing.
    record = {} if file is None else read_record(file, arguments=dict).get("arguments", {})
    order = record.get("order", [])
    if _is_valid(order, slices, plan):
        return order
    result = fit_fixed_order(
        *(slices, reconstructor, replace(plan, batch_size=n_at_once(plan, slices))),
        n_slices_per_step=n_slices_per_step,
        device=slices.device,
        on_step=on_step,
    )
    if file is not None:
        header = {"schema_version": SCHEMA_VERSION, "kind": "policy", "component": "fixed"}
        arguments = {"n_cols": slices.n_cols, "order": result.order}
        extra = {**depends_on, "mean_scores": result.mean_scores}
        write_json(file, {**header, "arguments": arguments, "extra": extra})
    return result.order


def _is_valid(order: list[object], slices: SliceSet, plan: Plan) -> bool:
    """Return whether a list from a file is an order of `horizon` columns outside the start."""
    start = start_mask(plan.start, (1, slices.n_cols), torch.device("cpu"))[0]
    if not isinstance(order, list):
        return False
    is_new = all(type(x) is int and 0 <= x < slices.n_cols and not start[x] for x in order)
    return is_new and len(set(order)) == len(order) == plan.horizon
