"""How policies run: as was asked for, and as their training runs tell where nothing was."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from kscout.core import Reconstructor
from kscout.errors import ConfigError
from kscout.evaluation.analyses.analysis import SliceSetting
from kscout.evaluation.running.entries import Budget, budget_of_network, budgets_of
from kscout.evaluation.running.kinds import check_kinds
from kscout.evaluation.running.trajectories import AcquisitionPlan
from kscout.evaluation.summaries.conditions import EvaluationRequest


@final
@dataclass(frozen=True)
class EvaluationSetting:
    """What is evaluated on what, and how; defaults are the paper's."""

    plan: AcquisitionPlan
    """Start, horizon, trajectories, draws, protocol and batch size."""
    seeds: tuple[int, ...] = ()
    """Seeds of the draws, each a row of its own for policies that are not trained; the plan's
    where not given."""
    split: str = "test"
    size: int | tuple[int, int] | None = None
    """Matrix size, for a split that holds several."""
    limit: int | None = None
    """Evaluate this many slices only, spread evenly over the split."""
    reference: str | None = None
    """Policy that others are compared with; see `summarize`."""
    n_fixed_slices: int = 256
    """Training slices drawn for each column of the order of `fixed`."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    precision: str = "auto"
    """Arithmetic of the reconstructions; see `Reconstructor.frozen`."""
    initial: str | Path | None = None
    """Columns to start from in place of the plan's; see `kscout.acquisition.starts.read_starts`."""
    budget: int | str | Path | None = None
    """Columns measured in the end in place of the plan's horizon; see `read_budgets`."""
    n_examples: int = 3
    """Slices kept with images beside the results, for reports; changes no result."""

    def __post_init__(self) -> None:
        if len(set(self.draw_seeds)) < len(self.draw_seeds):
            raise ConfigError(f"seeds {list(self.seeds)} name one twice; give each once")
        if self.n_fixed_slices < 1:
            raise ConfigError(f"fixed_slices is {self.n_fixed_slices}; it must be 1 or more")

    @property
    def draw_seeds(self) -> tuple[int, ...]:
        return tuple(int(seed) for seed in self.seeds or (self.plan.seed,))

    def under_protocol_of(self, network: Reconstructor) -> "EvaluationSetting":
        """Return the setting with the protocol of a reconstruction, if it names none."""
        protocol = network.protocol_for(self.plan.protocol)
        return replace(self, plan=replace(self.plan, protocol=protocol))


def setting_of(
    request: EvaluationRequest, *, batch_size: int | None, device: str
) -> EvaluationSetting:
    """Return how an evaluation runs: without columns in the request, as its runs were trained."""
    check_kinds(request.policies, request.reconstructor)
    for one, other in (("n_initial", "initial"), ("steps", "budget")):
        if None not in (getattr(request, one), getattr(request, other)):
            flags = f"--{one.replace('_', '-')} or --{other}"
            raise ConfigError(f"an evaluation takes either {flags}; give one of them")
    request = _with_columns(request)
    plan = AcquisitionPlan(
        n_initial=request.n_initial or 0,
        horizon=request.steps or 0,
        columns_per_step=request.columns_per_step,
        stop_below=request.stop_below,
        n_trajectories=request.trajectories,
        is_argmax=request.argmax,
        protocol=request.protocol,
        batch_size=batch_size,
    )
    return EvaluationSetting(
        plan,
        seeds=request.seeds,
        split=request.split,
        size=request.size,
        limit=request.limit,
        reference=request.reference,
        n_fixed_slices=request.fixed_slices,
        device=device,
        precision=request.precision,
        initial=request.initial,
        budget=request.budget,
    )


def _with_columns(request: EvaluationRequest) -> EvaluationRequest:
    """Return a request that says all of its columns; runs tell what it does not."""
    has_start = request.n_initial is not None or request.initial is not None
    has_end = request.steps is not None or request.budget is not None
    if has_start and has_end:
        return request
    n_initial, horizon, initial, group = told_by_runs(request.policies, request.reconstructor)
    if not has_start and not has_end and request.columns_per_step == 1:
        request = replace(request, columns_per_step=group)
    if not has_start:
        request = replace(
            request, initial=initial, n_initial=n_initial if initial is None else None
        )
    return request if has_end else replace(request, steps=horizon)


def setting_of_analysis(wanted: Sequence[str], setting: SliceSetting) -> EvaluationSetting:
    """Return how an analysis runs policies; where no budget is given, it is that of the runs."""
    n_initial, horizon, initial = _budget(wanted, setting)
    plan = AcquisitionPlan(
        n_initial=n_initial,
        horizon=horizon,
        n_trajectories=setting.trajectories,
        protocol=setting.protocol,
        batch_size=setting.batch_size,
    )
    return EvaluationSetting(
        plan,
        seeds=setting.seed,
        split=setting.split,
        limit=setting.limit,
        device=setting.device,
        precision=setting.precision,
        initial=initial,
    )


def _budget(wanted: Sequence[str], setting: SliceSetting) -> tuple[int, int, str | None]:
    n_initial, horizon = setting.n_initial, setting.steps
    if n_initial is not None and horizon is not None:
        return n_initial, horizon, None
    own = told_by_runs(wanted, setting.reconstructor)
    horizon = own[1] if horizon is None else horizon
    return (own[0], horizon, own[2]) if n_initial is None else (n_initial, horizon, None)


def told_by_runs(wanted: Sequence[str], reconstructor: str | None = None) -> Budget:
    """Return the one acquisition that all runs among policies were trained for.

    Args:
        wanted: the policies.
        reconstructor: what they run with; where no policy tells, one that learned together with a
            policy does, which is noted.
    """
    budgets = budgets_of(wanted)
    if not budgets and reconstructor is not None:
        learned = budget_of_network(reconstructor)
        if learned is not None:
            _tell_learned(reconstructor, learned)
            return learned
    if len(budgets) != 1:
        found = "no run tells" if not budgets else "runs differ in"
        raise ConfigError(
            f"{found} how many columns to start from and to acquire; give --n-initial and --steps"
        )
    (own,) = budgets
    return own


def _tell_learned(reconstructor: str, learned: Budget) -> None:
    n_initial, horizon, initial, _ = learned
    start = "" if initial is None else f" ({initial})"
    logging.getLogger(__name__).warning(
        f"no policy tells start and budget; those are taken that {reconstructor} learned for "
        f"together with a policy, {n_initial}{start} + {horizon} columns"
    )
