"""Run policies on data, compare them, analyze what they do.

Public names load on first use, so planning and reports do not import torch.
"""

from typing import TYPE_CHECKING

from kscout.exports import on_first_use

if TYPE_CHECKING:
    from kscout.evaluation.acquired import Acquisitions as Acquisitions
    from kscout.evaluation.acquired import acquire as acquire
    from kscout.evaluation.analyses import Analysis as Analysis
    from kscout.evaluation.analyses import PolicyAnalysis as PolicyAnalysis
    from kscout.evaluation.analyses import run_analysis as run_analysis
    from kscout.evaluation.analyses.entropy import entropies as entropies
    from kscout.evaluation.analyses.reconstructions import (
        compare_reconstructions as compare_reconstructions,
    )
    from kscout.evaluation.analyses.snr import signal_to_noise as signal_to_noise
    from kscout.evaluation.compare import Evaluation as Evaluation
    from kscout.evaluation.compare import compare_policies as compare_policies
    from kscout.evaluation.compare import evaluate as evaluate
    from kscout.evaluation.progress import Step as Step
    from kscout.evaluation.records.results import Scores as Scores
    from kscout.evaluation.records.results import read_scores as read_scores
    from kscout.evaluation.request import EvaluationSetting as EvaluationSetting
    from kscout.evaluation.running.prepare import Prepared as Prepared
    from kscout.evaluation.running.prepare import open_policies as open_policies
    from kscout.evaluation.statistics import confidence_interval as confidence_interval
    from kscout.evaluation.summaries.summary import Summary as Summary
    from kscout.evaluation.summaries.summary import read_summary as read_summary

_MODULES = {
    "kscout.evaluation.analyses": "Analysis PolicyAnalysis run_analysis",
    "kscout.evaluation.acquired": "Acquisitions acquire",
    "kscout.evaluation.compare": "Evaluation compare_policies evaluate",
    "kscout.evaluation.request": "EvaluationSetting",
    "kscout.evaluation.running.prepare": "Prepared open_policies",
    "kscout.evaluation.records.results": "Scores read_scores",
    "kscout.evaluation.progress": "Step",
    "kscout.evaluation.summaries.summary": "Summary read_summary",
    "kscout.evaluation.statistics": "confidence_interval",
    "kscout.evaluation.analyses.reconstructions": "compare_reconstructions",
    "kscout.evaluation.analyses.entropy": "entropies",
    "kscout.evaluation.analyses.snr": "signal_to_noise",
}

__getattr__, __dir__, __all__ = on_first_use(__name__, _MODULES)
