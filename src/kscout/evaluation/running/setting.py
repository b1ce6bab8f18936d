"""Start, budget and protocol of an evaluation that does not state them."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from kscout.config import AcquisitionSetting
from kscout.core import Reconstructor
from kscout.errors import ConfigError
from kscout.evaluation.request import EvaluationSetting
from kscout.evaluation.running.entries import budget_of_network, budgets_of


def completed(
    setting: EvaluationSetting, policies: Sequence[str], source: str | None, network: Reconstructor
) -> EvaluationSetting:
    """Return a setting with start, budget and protocol; by default those of the trainings.

    `source` is the name or path of the reconstruction, and `network` the same, loaded.
    """
    setting = replace(setting, protocol=network.protocol_for(setting.protocol))
    has_start = setting.n_initial is not None or setting.initial is not None
    has_end = setting.steps is not None or setting.budget is not None
    if has_start and has_end:
        return setting
    trained = trained_budget(policies, source)
    if not has_start and not has_end and setting.columns_per_step == 1:
        setting = replace(setting, columns_per_step=trained.group)
    if not has_start and trained.initial is not None:
        setting = replace(setting, initial=trained.initial)
    elif not has_start:
        setting = replace(setting, n_initial=trained.n_initial)
    return setting if has_end else replace(setting, steps=trained.horizon)


def trained_budget(policies: Sequence[str], reconstructor: str | None = None) -> AcquisitionSetting:
    """Return the acquisition for which all policies were trained that have a start and a budget.

    If no policy has them, those of a joint training of the reconstruction are used, with a warning.
    """
    budgets = budgets_of(policies)
    if not budgets and reconstructor is not None:
        budget = budget_of_network(reconstructor)
        if budget is not None:
            logging.getLogger(__name__).warning(
                "no policy has a start and a budget; those of the joint training of "
                f"{reconstructor} are used, {budget}"
            )
            return budget
    if len(budgets) != 1:
        named = "; ".join(f"{', '.join(names)}: {one}" for one, names in budgets.items())
        fault = f"the policies have different ones ({named})" if budgets else "no policy has them"
        raise ConfigError(
            f"start and budget are not given, and {fault}; add --n-initial and --steps"
        )
    return next(iter(budgets))
