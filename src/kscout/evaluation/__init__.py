"""Judge policies: run them over data, compare them, analyze what they do.

| file | what |
|---|---|
| `compare`, `prepare`, `contenders`, `fixed_orders`, `finished` | `evaluate`, and what it opens |
| `trajectories`, `progress` | one policy over a whole data set |
| `watching` | one slice, step by step, with all that a page shows |
| `results`, `summary`, `summarize`, `statistics` | `results.csv`, `summary.json`, tests |
| `adaptivity`, `gradient_noise`, `policy_noise`, `overlooked` | numbers behind analyses |
| `analyses` | one file per analysis |
| `reconstructions` | reconstructions compared |

Public names load on first use, so that planning and reports do not wait for torch.
"""

from typing import TYPE_CHECKING

from kscout.exports import on_first_use

if TYPE_CHECKING:
    from kscout.evaluation.adaptivity import entropies
    from kscout.evaluation.analyses import Analysis, PolicyAnalysis, SliceSetting, run_analysis
    from kscout.evaluation.compare import Evaluation, evaluate
    from kscout.evaluation.gradient_noise import signal_to_noise
    from kscout.evaluation.prepare import EvaluationSetting, Prepared, open_policies
    from kscout.evaluation.progress import Step
    from kscout.evaluation.reconstructions import compare_reconstructions
    from kscout.evaluation.results import Scores, read_scores
    from kscout.evaluation.statistics import bootstrap_interval
    from kscout.evaluation.summary import Summary, read_summary
    from kscout.evaluation.trajectories import AcquisitionPlan

_PLACES = {
    "AcquisitionPlan": "kscout.evaluation.trajectories",
    "Analysis": "kscout.evaluation.analyses",
    "Evaluation": "kscout.evaluation.compare",
    "EvaluationSetting": "kscout.evaluation.prepare",
    "PolicyAnalysis": "kscout.evaluation.analyses",
    "Prepared": "kscout.evaluation.prepare",
    "Scores": "kscout.evaluation.results",
    "SliceSetting": "kscout.evaluation.analyses",
    "Step": "kscout.evaluation.progress",
    "Summary": "kscout.evaluation.summary",
    "bootstrap_interval": "kscout.evaluation.statistics",
    "compare_reconstructions": "kscout.evaluation.reconstructions",
    "entropies": "kscout.evaluation.adaptivity",
    "evaluate": "kscout.evaluation.compare",
    "open_policies": "kscout.evaluation.prepare",
    "read_scores": "kscout.evaluation.results",
    "read_summary": "kscout.evaluation.summary",
    "run_analysis": "kscout.evaluation.analyses",
    "signal_to_noise": "kscout.evaluation.gradient_noise",
}

__getattr__, __dir__ = on_first_use(__name__, _PLACES)

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
    "bootstrap_interval",
    "compare_reconstructions",
    "entropies",
    "evaluate",
    "open_policies",
    "read_scores",
    "read_summary",
    "run_analysis",
    "signal_to_noise",
]
