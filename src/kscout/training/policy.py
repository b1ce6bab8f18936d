"""Training of a policy on a frozen reconstruction, or of several, on a GPU in a process each."""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import (
    FIRST_EXCEPTION,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from kscout.acquisition.episode import MEMORY_LIMIT
from kscout.acquisition.plan import check_budget
from kscout.assemble import make_policy
from kscout.children import SAFE_PATH, end_with_parent, environment_of_children
from kscout.columns import columns_text, parse_columns
from kscout.compatibility import Use, network_notes, protocol_note, warn
from kscout.config import JointConfig, PolicyConfig, PolicyTraining
from kscout.contracts import check_learnable
from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.device import at_most_a_quarter, check_memory, free_memory, resolve_device
from kscout.errors import ConfigError, RunError
from kscout.json_types import JsonObject
from kscout.names import ESTIMATORS, SAMPLERS, use, used
from kscout.policies import load as load_policy
from kscout.policies import save
from kscout.policies.ensemble import EnsemblePolicy
from kscout.reconstruction import load
from kscout.runs import Progress, RunRecord, read_run
from kscout.training.algorithm import Estimator, Learner
from kscout.training.algorithms.recording import KEPT_BYTES
from kscout.training.convolution import convolution, to_layout
from kscout.training.distributed import refuse_processes
from kscout.training.loop import OnStep, fixed_convolution, opened_run, train_epochs
from kscout.training.starting import begin_from, network_of
from kscout.training.training_run import TrainingRun
from kscout.training.validation import final_picture, final_scores, zero_filled_note
from kscout.weights import fingerprint

_KNOWN = {*ESTIMATORS.entries, *SAMPLERS.entries}
"""Methods of kscout; those of other packages are not included."""
_BY_SCORES = _KNOWN - {"posterior", "ensemble"}
"""Methods that train with the gradients of scores."""
_POLL_S = 0.5


def train_policy(
    config: PolicyConfig,
    store: Store | Path | str,
    reconstructor: str | Path,
    out: str | Path,
    *,
    start: str | Path | None = None,
    device: str = "auto",
    on_step: OnStep = lambda _: None,
) -> RunRecord:
    """Train one policy on a frozen reconstruction, or resume an interrupted training.

    Args:
        config: settings.
        store: dataset with the splits `train` and `val`.
        reconstructor: what `kscout.reconstruction.load` takes; it stays frozen.
        out: the run folder.
        start: a trained policy whose weights are the initial weights, as `kscout.policies.load`
            takes it; its network is used. Not given: random initial weights.
        device: `auto`, `cpu` or `cuda`.
        on_step: called after each optimizer step, and with the epoch's record after each epoch.
    """
    refuse_processes("a policy training")
    estimator = ESTIMATORS.resolve(config.training.method)
    place, frozen, begun = resolve_device(device), load(reconstructor), None
    protocol, store = frozen.protocol_for(config.training.protocol), Store.open(store)
    config = replace(config, training=replace(config.training, protocol=protocol))
    inputs = {"store": store.fingerprint, "reconstructor": fingerprint(frozen)}
    slices, held_out = (store.split(name).to(place) for name in ("train", "val"))
    if start is not None:
        begun = load_policy(start)
        config = network_of(begun, start, config, _sizes(config, slices))
        inputs["start"] = fingerprint(begun)
    check_setting(config, (slices, held_out))
    setting, training = config.acquisition, config.training
    listed = None if setting.initial is None else columns_text(parse_columns(setting.initial))
    use = Use(slices.shape, setting.n_initial, setting.horizon, protocol, listed)
    warn(network_notes(frozen, use))
    check_memory(
        training.n_bytes(len(slices), setting.horizon, math.prod(slices.shape)),
        slices.device,
        f"trying {training.n_tried:,} columns at each of {setting.horizon} steps on "
        f"{len(slices):,} slices",
        "lower --trajectories (or training.n_random and n_repeated) or --batch-size",
    )
    # Before the folder is made: a policy that cannot be trained leaves nothing behind.
    policy = new_policy(config, slices).to(place)
    if isinstance(policy, EnsemblePolicy):
        # Its own weights are not fitted yet, so its members determine it.
        inputs["members"] = fingerprint(policy)
    if begun is not None:
        begin_from(policy, begun)
    with opened_run(out, config, inputs, place, note=protocol_note(frozen, use)) as run:
        learner = Learner.of(policy, config)
        learner.start = begun
        training_run = TrainingRun.resume(learner, run, partial(_save, config, inputs))
        if not training_run.is_finished:
            _train(training_run, estimator, slices, held_out, frozen, on_step)
    return read_run(out)


def _train(
    training_run: TrainingRun[Policy, PolicyConfig],
    estimator: type[Estimator],
    slices: SliceSet,
    held_out: SliceSet,
    reconstructor: Reconstructor,
    on_step: OnStep,
) -> None:
    learner = training_run.learner
    training, device = learner.config.training, slices.device
    _, n_rows, n_cols = slices.shape
    frozen = reconstructor.frozen(
        precision=training.precision, n_rows=n_rows, n_cols=n_cols, device=device
    )
    backend = fixed_convolution(training_run.folder, training.convolution, device, trains=False)
    acquisition = learner.config.acquisition
    use = (acquisition.start, acquisition.horizon, frozen.protocol_for(training.protocol))
    note = zero_filled_note(frozen, held_out, *use)
    warn([] if note is None else [note])
    if device.type == "cpu":
        # On CUDA what is frozen has chosen its own, which torch.compile may count on.
        to_layout(frozen, backend)

    def validated(estimator: Estimator) -> tuple[Policy, Reconstructor, SliceSet, PolicyConfig]:
        estimator.evaluated().eval()
        policy, slices = estimator.chooser(), estimator.validated(held_out)
        return policy, estimator.reconstructor, slices, estimator.config

    with convolution(backend):
        train_epochs(
            estimator(learner, slices, frozen),
            training_run,
            lambda estimator: final_scores(*validated(estimator)),
            picture=lambda estimator: final_picture(*validated(estimator)),
            on_step=on_step,
        )


def _save(
    config: PolicyConfig, inputs: dict[str, str], path: Path, policy: Policy, epoch: int
) -> None:
    save(path, policy, extra={**metadata_of(config, epoch), **inputs})


def metadata_of(config: PolicyConfig | JointConfig, epoch: int) -> JsonObject:
    """Return the metadata of the training in a weights file."""
    training, setting = config.training, config.acquisition
    return {
        "epoch": epoch,
        "method": training.method,
        **(training.varied if isinstance(training, PolicyTraining) else {}),
        "seed": training.seed,
        "protocol": training.protocol,
        "n_initial": setting.n_initial,
        **({} if setting.initial is None else {"initial": setting.initial}),
        "horizon": setting.horizon,
    }


def new_policy(config: PolicyConfig | JointConfig, slices: SliceSet) -> Policy:
    """Build the policy to train, with its initial weights."""
    policy = make_policy(config.policy, seed=config.training.seed, **_sizes(config, slices))
    name, method = config.policy.name, config.training.method
    if not list(policy.parameters()):
        raise ConfigError(
            f"policy {name!r} has nothing to train; use a learnable one, e.g. policy.name = 'conv'"
        )
    check_learnable(policy, name)
    if isinstance(policy, EnsemblePolicy) and method in _KNOWN - {"ensemble"}:
        raise ConfigError(
            f"{method} would change the members of an ensemble; train it with --method ensemble"
        )
    if policy.needs_gain_estimator and method in _BY_SCORES:
        raise ConfigError(
            f"policy {name!r} tries columns, so its scores have no gradients with "
            "respect to its weights; train it with --method posterior"
        )
    return policy


def _sizes(config: PolicyConfig | JointConfig, slices: SliceSet) -> JsonObject:
    setting, (n_rows, n_cols) = config.acquisition, slices.shape[1:]
    columns = {"n_initial": setting.n_initial, "horizon": setting.horizon}
    return {"n_cols": n_cols, "n_rows": n_rows, **columns}


def check_setting(config: PolicyConfig | JointConfig, splits: Sequence[SliceSet]) -> None:
    """Raise an error for a budget beyond some slice; warn of settings for other data."""
    setting = config.acquisition
    for split in splits:
        if config.training.protocol is not None:
            split.check_protocol(config.training.protocol)
        check_budget(split.selectable, n_initial=setting.start, horizon=setting.horizon)
        split.check_start(setting.start)
    if setting.size not in (None, n_cols := splits[0].n_cols):
        logging.getLogger(__name__).warning(
            f"the setting {setting.n_initial} + {setting.horizon} columns is meant for "
            f"{setting.size}, and the images have {n_cols}; name --n-initial and --steps, or "
            "another --preset, if it was not chosen for them"
        )


def train_policies(
    configs: Sequence[PolicyConfig],
    store: Store,
    reconstructor: str | Path,
    outs: Sequence[str | Path],
    *,
    start: str | Path | None = None,
    device: str = "auto",
    on_step: OnStep = lambda _: None,
    n_at_once: int | None = None,
) -> list[RunRecord]:
    """Train several policies, each into its own run folder, as `train_policy` does.

    Args:
        configs: settings of each.
        store: slices with the splits `train` and `val`.
        reconstructor: as for `train_policy`.
        outs: a run folder for each.
        start: as for `train_policy`.
        device: `auto`, `cpu` or `cuda`.
        on_step: called as by `train_policy`; for processes, once per epoch of the first training
            that is not finished.
        n_at_once: number of processes. Not given: 1 on a CPU, which trains in this process; on
            CUDA the number that fits into the free memory of the device.
    """
    if n_at_once is None:
        n_at_once = _n_at_once(device, len(configs))
    how = {"start": start, "device": device}
    pairs = list(zip(configs, outs, strict=True))
    if n_at_once == 1:
        return [
            train_policy(config, store, reconstructor, out, **how, on_step=on_step)  # type: ignore[arg-type]
            for config, out in pairs
        ]
    with environment_of_children(SAFE_PATH):
        pool = ThreadPoolExecutor(n_at_once)
        try:
            tasks = [
                pool.submit(
                    _in_a_process,
                    partial(_worker, config, store.path, reconstructor, out, how, is_first=i == 0),
                )
                for i, (config, out) in enumerate(pairs)
            ]
            _watch(tasks, pairs, on_step)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return [task.result() for task in tasks]


def _n_at_once(device: str, n_runs: int) -> int:
    """Return the number of trainings that fit into the free memory of a device; 1 on a CPU."""
    place = resolve_device(device)
    if place.type == "cpu":
        return 1
    n_bytes = sum(at_most_a_quarter(x[place.type], place) for x in (MEMORY_LIMIT, KEPT_BYTES))
    return max(1, min(n_runs, free_memory(place) // n_bytes))


def _in_a_process(training: Callable[[], RunRecord]) -> RunRecord:
    """Run a training in a process of its own, whose end frees all memory of the device."""
    modules = used() - {"__main__"}
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        process.submit(_begin, modules).result()
        return process.submit(training).result()


def _begin(modules: Iterable[str]) -> None:
    """Prepare a worker process; components may come from modules that the command uses."""
    end_with_parent()
    for module in modules:
        use(module)


def _worker(
    config: PolicyConfig,
    store: Path,
    reconstructor: str | Path,
    out: str | Path,
    how: JsonObject,
    *,
    is_first: bool,
) -> RunRecord:
    if not is_first:
        # All trainings have equal warnings, which the first one prints.
        logging.disable(logging.WARNING)
    return train_policy(config, Store.open(store), reconstructor, out, **how)


def _watch(
    tasks: Sequence["Future[RunRecord]"],
    runs: Sequence[tuple[PolicyConfig, str | Path]],
    on_step: OnStep,
) -> None:
    """Report epochs of the first unfinished training until all end or one fails."""
    n_reported = [0] * len(tasks)
    while True:
        left = wait(tasks, _POLL_S, FIRST_EXCEPTION).not_done
        first = next((i for i, task in enumerate(tasks) if task in left), len(tasks) - 1)
        config, out = runs[first]
        for record in _metrics(Path(out))[n_reported[first] :]:
            n_reported[first] += 1
            on_step(Progress(record["epoch"], config.training.n_epochs, 1, 1, record))
        if not left or any(task.done() and task.exception() for task in tasks):
            return


def _metrics(out: Path) -> list[JsonObject]:
    try:
        return read_run(out).metrics
    except RunError:
        return []  # not begun
