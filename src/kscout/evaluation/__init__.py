"""Judge policies: run them over data, compare them, analyze what they do.

| where | what |
|---|---|
| `compare` | `evaluate`: policies compared over a split |
| `watching` | one slice, step by step, with all that a page shows |
| `adaptivity`, `gradient_noise`, `policy_noise`, `overlooked` | what analyses ask of policies |
| `posterior`, `reconstructions` | what they ask beside |
| `statistics` | intervals and paired tests, by volume |
| `running/` | policies over a split: opened, prepared, run, kept |
| `records/` | what lies on disk afterwards: `results.csv`, acquisitions, names of runs |
| `summaries/` | `summary.json`, its tables, the paper's numbers |
| `analyses/` | one file per analysis: options, table, figures, section of the report |

Public names load on first use, so that planning and reports do not wait for torch.
"""

from typing import TYPE_CHECKING

from kscout.exports import on_first_use

if TYPE_CHECKING:
    from kscout.evaluation.adaptivity import entropies
    from kscout.evaluation.analyses import Analysis, PolicyAnalysis, SliceSetting, run_analysis
    from kscout.evaluation.compare import Evaluation, evaluate
    from kscout.evaluation.gradient_noise import signal_to_noise
    from kscout.evaluation.progress import Step
    from kscout.evaluation.reconstructions import compare_reconstructions
    from kscout.evaluation.records.results import Scores, read_scores
    from kscout.evaluation.running.prepare import Prepared, open_policies
    from kscout.evaluation.running.setting import EvaluationSetting
    from kscout.evaluation.running.trajectories import AcquisitionPlan
    from kscout.evaluation.statistics import bootstrap_interval
    from kscout.evaluation.summaries.summary import Summary, read_summary

_PLACES = {
    "AcquisitionPlan": "kscout.evaluation.running.trajectories",
    "Analysis": "kscout.evaluation.analyses",
    "Evaluation": "kscout.evaluation.compare",
    "EvaluationSetting": "kscout.evaluation.running.setting",
    "PolicyAnalysis": "kscout.evaluation.analyses",
    "Prepared": "kscout.evaluation.running.prepare",
    "Scores": "kscout.evaluation.records.results",
    "SliceSetting": "kscout.evaluation.analyses",
    "Step": "kscout.evaluation.progress",
    "Summary": "kscout.evaluation.summaries.summary",
    "bootstrap_interval": "kscout.evaluation.statistics",
    "compare_reconstructions": "kscout.evaluation.reconstructions",
    "entropies": "kscout.evaluation.adaptivity",
    "evaluate": "kscout.evaluation.compare",
    "open_policies": "kscout.evaluation.running.prepare",
    "read_scores": "kscout.evaluation.records.results",
    "read_summary": "kscout.evaluation.summaries.summary",
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
