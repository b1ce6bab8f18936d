"""Open what an analysis needs: policies, slices and reconstruction, for one acquisition plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from kscout import reconstruction
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.device import resolve_device
from kscout.errors import ConfigError
from kscout.evaluation.analyses.analysis import SliceSetting
from kscout.evaluation.entrants import Entrant, Sizes, check_distinct, is_fitted, resolve
from kscout.evaluation.orders import fitted_order
from kscout.evaluation.trajectories import AcquisitionPlan
from kscout.names import POLICIES

_N_FIXED_SLICES = 256
"""Training slices drawn for each column of the order of `fixed`."""


@final
@dataclass(frozen=True)
class Subjects:
    """Policies ready to run."""

    entrants: list[Entrant]
    slices: SliceSet
    reconstructor: Reconstructor
    plan: AcquisitionPlan

    @property
    def by_name(self) -> dict[str, list[Entrant]]:
        """Entrants grouped as seeds of one method."""
        groups: dict[str, list[Entrant]] = {}
        for entrant in self.entrants:
            groups.setdefault(entrant.name, []).append(entrant)
        return groups


def open_subjects(wanted: Sequence[str], setting: SliceSetting) -> Subjects:
    """Load policies (names, runs, weights files), a split and a reconstruction."""
    if not wanted:
        raise ConfigError("no policy to analyze; name a run folder or a policy")
    device = resolve_device(setting.device)
    store = Store.open(setting.data)
    whole = store.split(setting.split)
    slices = whole.sample(setting.limit).to(device)
    _, n_rows, n_cols = slices.shape
    loaded = reconstruction.load(setting.reconstructor).frozen(
        precision="auto", n_rows=n_rows, n_cols=n_cols, device=device
    )
    # Runs do not need their sizes to be loaded: theirs tell the budget where none is given.
    draft = Sizes(n_rows, n_cols, setting.n_initial or 1, setting.steps or 1)
    others = [name for name in wanted if not is_fitted(name)]
    runs = [one for name in others for one in resolve(name, draft, seeds=setting.seed)]
    plan = _plan(setting, runs)
    orders = {
        name: fitted_order(
            slices if POLICIES[name].is_oracle else store.split("train").to(device),
            loaded,
            plan,
            n_slices_per_step=None if POLICIES[name].is_oracle else _N_FIXED_SLICES,
        )
        for name in dict.fromkeys(wanted)
        if is_fitted(name)
    }
    sizes = Sizes(n_rows, n_cols, plan.n_initial, plan.horizon)
    entrants = [
        one for name in wanted for one in resolve(name, sizes, seeds=setting.seed, orders=orders)
    ]
    check_distinct(entrants)
    return Subjects(entrants, slices, loaded, plan)


def _plan(setting: SliceSetting, entrants: Sequence[Entrant]) -> AcquisitionPlan:
    budgets = {
        (config["acquisition"]["n_initial"], config["acquisition"]["horizon"])
        for config in (entrant.config for entrant in entrants)
        if config is not None and "acquisition" in config
    }
    n_initial, horizon = setting.n_initial, setting.steps
    if n_initial is None or horizon is None:
        if len(budgets) != 1:
            found = "no run tells" if not budgets else "the runs were trained for several"
            raise ConfigError(
                f"{found} how many columns to start from and to acquire; "
                "give --n-initial and --steps"
            )
        (own,) = budgets
        n_initial = own[0] if n_initial is None else n_initial
        horizon = own[1] if horizon is None else horizon
    return AcquisitionPlan(
        n_initial=n_initial,
        horizon=horizon,
        n_trajectories=setting.trajectories,
        seed=setting.seed[0],
        protocol=setting.protocol,
        batch_size=setting.batch_size,
    )
