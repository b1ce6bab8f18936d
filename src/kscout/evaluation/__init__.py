"""Judge policies: run them over data, compare them, analyze what they do.

| file | what |
|---|---|
| `compare`, `prepare`, `contenders`, `fixed_orders`, `finished` | `evaluate`, and what it opens |
| `trajectories`, `progress` | one policy over a whole data set |
| `results`, `summary`, `summarize`, `statistics` | `results.csv`, `summary.json`, tests |
| `adaptivity`, `gradient_noise`, `policy_noise`, `overlooked` | numbers behind analyses |
| `analyses` | one file per analysis |
| `reconstructions` | reconstructions compared |

Public names load on first use, so that planning and reports do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kscout.evaluation.adaptivity import entropies
    from kscout.evaluation.analyses import Analysis, PolicyAnalysis, SliceSetting, run_analysis
    from kscout.evaluation.compare import Evaluation, evaluate
    from kscout.evaluation.gradient_noise import signal_to_noise
    from kscout.evaluation.prepare import EvaluationSetting, Prepared, open_policies
    from kscout.evaluation.progress import Step
    from kscout.evaluation.reconstructions import compare_reconstructions
    from kscout.evaluation.results import Scores, read_scores
    from kscout.evaluation.summary import Summary, read_summary
    from kscout.evaluation.trajectories import AcquisitionPlan

_PLACES = {
    "AcquisitionPlan": "trajectories",
    "Analysis": "analyses",
    "Evaluation": "compare",
    "EvaluationSetting": "prepare",
    "PolicyAnalysis": "analyses",
    "Prepared": "prepare",
    "Scores": "results",
    "SliceSetting": "analyses",
    "Step": "progress",
    "Summary": "summary",
    "compare_reconstructions": "reconstructions",
    "entropies": "adaptivity",
    "evaluate": "compare",
    "open_policies": "prepare",
    "read_scores": "results",
    "read_summary": "summary",
    "run_analysis": "analyses",
    "signal_to_noise": "gradient_noise",
}

__all__ = [
    "AcquisitionPlan",
    "Analysis",
    "Evaluation",
    "EvaluationSetting",
    "PolicyAnalysis",
    "Prepared",
    "Scores",
    "SliceSetting",
    "Step",
    "Summary",
    "compare_reconstructions",
    "entropies",
    "evaluate",
    "open_policies",
    "read_scores",
    "read_summary",
    "run_analysis",
    "signal_to_noise",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the public name stands for
    if name in _PLACES:
        return getattr(import_module(f"kscout.evaluation.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'kscout.evaluation' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
