"""Registries by name, for the command line, campaigns, reports and benchmarks.

Nothing here imports torch. An entry has the location of its class (`module:Name`) and the facts
that planning needs before the import. Three kinds of names are accepted:

| name | stands for |
|---|---|
| `random` | an entry of the table below |
| `my-policy` | an entry point that an installed package declares in the table's group |
| `my_module:MyClass` | a class of the user, importable from the working directory |

Code is imported only if a user named it, on the command line, in a settings file or in Python.
A weights file also names its class, but loading it imports nothing new: `recall` finds registered
names, entry points and modules that were named before (`use`, `--use`, `KSCOUT_USE`).
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from kscout.errors import ConfigError, unknown_name, unknown_source
from kscout.names.data import (
    FORMATS,
    IMPORT_PRESETS,
    RAW_FORMATS,
    SOURCES,
    TARGETS,
    ImageFormat,
    Origin,
    PhaseEncoding,
    Plane,
    Target,
    check_target,
)
from kscout.names.renamed import current
from kscout.names.table import (
    Entry,
    EstimatorEntry,
    FormatEntry,
    PolicyEntry,
    ReconstructorEntry,
    Registry,
    SourceEntry,
    import_target,
    is_outside,
    use,
    used,
)

Protocol = Literal["paper", "blind"]
"""Units of scored images: `paper` denormalizes with statistics of the target, which no scanner
has; `blind` with those of the measurement."""

PROTOCOLS: tuple[Protocol, ...] = ("paper", "blind")


def check_protocol(protocol: str) -> None:
    """Raise an error for an unknown protocol, as any word except `paper` acts as `blind`."""
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, list(PROTOCOLS))


POLICIES = Registry(
    "policy",
    group="kscout.policies",
    base="kscout.core:Policy",
    make=PolicyEntry,
    room="kscout.policies",
    entries={
        "random": PolicyEntry("random:Random", "uniform over unmeasured columns"),
        "variable-density": PolicyEntry("random:VariableDensity", "random, denser near the center"),
        "equispaced-one": PolicyEntry("fixed:EquispacedOne", "equally spaced, on one side"),
        "equispaced-two": PolicyEntry("fixed:EquispacedTwo", "equally spaced, on both sides"),
        "center-out": PolicyEntry("fixed:CenterOut", "the column nearest to the center"),
        "fixed": PolicyEntry("fixed:FixedOrder", "one order, fitted to training data", "fit"),
        "na-oracle": PolicyEntry(
            "fixed:NaOracle", "one order, fitted to the test data", "fit", True
        ),
        "oracle": PolicyEntry("oracle:Oracle", "best next column by ground truth", is_oracle=True),
        "spectral-oracle": PolicyEntry(
            "oracle:SpectralOracle", "column of largest true k-space error", is_oracle=True
        ),
        "conv": PolicyEntry("conv:ConvPolicy", "the paper's network", "training"),
        "alphazero": PolicyEntry(
            "conv:AlphaZeroPolicy", "the network of Jin, Unser and Yi", "training"
        ),
        "density": PolicyEntry(
            "random:LearnedDensity", "random by a learned density, not adaptive", "training"
        ),
        "column": PolicyEntry(
            "column:ColumnPolicy", "a network on k-space, one token per column", "training"
        ),
        "posterior": PolicyEntry(
            "posterior:PosteriorPolicy",
            "mean gains of columns on posterior samples of the image",
            "training",
        ),
        "ensemble": PolicyEntry(
            "ensemble:EnsemblePolicy", "a linear ensemble of several policies", "training"
        ),
    },
)


def check_label(label: str, name: str) -> None:
    """Raise an error for a label that is the name of another policy than the labeled one."""
    if label != name and label in [*POLICIES]:
        raise ConfigError(
            f"{label!r} is the name of a policy and cannot label another one ({name}); choose "
            "another label"
        )


RECONSTRUCTORS = Registry(
    "reconstruction",
    group="kscout.reconstructors",
    base="kscout.core:Reconstructor",
    make=ReconstructorEntry,
    room="kscout.reconstruction",
    entries={
        "zero-filled": ReconstructorEntry(
            "zero_filled:ZeroFilled", "inverse transform of what was measured", is_learnable=False
        ),
        "zero-filled-weighted": ReconstructorEntry(
            "zero_filled:WeightedZeroFilled",
            "the same, combined by sensitivities",
            is_learnable=False,
            is_for_coils=True,
        ),
        "total-variation": ReconstructorEntry(
            "total_variation:TotalVariation", "compressed sensing", is_learnable=False
        ),
        "sense": ReconstructorEntry(
            "sense:Sense",
            "least squares over all coils, with sensitivities",
            is_learnable=False,
            is_for_coils=True,
        ),
        "sense-tv": ReconstructorEntry(
            "total_variation:SenseTotalVariation",
            "compressed sensing over all coils",
            is_learnable=False,
            is_for_coils=True,
        ),
        "unet": ReconstructorEntry("unet:UNet", "the paper's U-Net"),
        "fastmri-unet": ReconstructorEntry("fastmri_unet:FastMRIUNet", "fastMRI's current U-Net"),
        "varnet": ReconstructorEntry(
            "varnet:VarNet", "unrolled network for coils (arXiv 2004.06688)"
        ),
    },
)


def untrained_reconstructions(*, of_coils: bool = True) -> list[str]:
    """Return the reconstructions of kscout that need no training.

    Without `of_coils`, those are omitted that only differ for several coils.
    """
    free = {name: one for name, one in RECONSTRUCTORS.entries.items() if not one.is_learnable}
    return [name for name, one in free.items() if of_coils or not one.is_for_coils]


def trainable_reconstructions() -> list[str]:
    """Return the reconstructions of kscout that have weights."""
    return [name for name, one in RECONSTRUCTORS.entries.items() if one.is_learnable]


RECONSTRUCTION_WORDS = (
    f"Run folder, weights file, zoo name, {', '.join(untrained_reconstructions())} or module:Class."
)
"""Help of options that name a reconstruction."""


ESTIMATORS = Registry(
    "estimator",
    group="kscout.estimators",
    base="kscout.training.algorithm:Estimator",
    make=EstimatorEntry,
    room="kscout.training",
    entries={
        "greedy": EstimatorEntry(
            "algorithms.greedy:Greedy",
            "the paper's greedy estimator: the gain of the next column",
            settings="kscout.config.training:GreedyTraining",
        ),
        "ngreedy": EstimatorEntry(
            "algorithms.non_greedy:NonGreedy",
            "the paper's non-greedy estimator: discounted gains until the end",
            settings="kscout.config.training:NonGreedyTraining",
            label="ngreedy-{gamma:g}",
            varies=("gamma",),
        ),
        "dense": EstimatorEntry(
            "algorithms.dense:Dense",
            "regression on the gains of many columns at each state",
            settings="kscout.config.training:DenseTraining",
            policy="column",
        ),
        "posterior": EstimatorEntry(
            "algorithms.posterior:Posterior",
            "posterior sampler: columns are tried on sampled images",
            settings="kscout.config.training:PosteriorTraining",
            policy="posterior",
        ),
        "ensemble": EstimatorEntry(
            "algorithms.ensemble:Ensemble",
            "per-step weights of several trained policies, by non-negative least squares",
            settings="kscout.config.training:EnsembleTraining",
            policy="ensemble",
        ),
        "alphazero": EstimatorEntry(
            "baselines.alphazero:AlphaZero",
            "tree search that the network learns to predict (arXiv 1901.04547)",
            settings="kscout.training.baselines.settings:AlphaZeroTraining",
            policy="alphazero",
        ),
        "ddqn": EstimatorEntry(
            "baselines.ddqn:Ddqn",
            "double deep Q-learning (arXiv 2007.10469)",
            settings="kscout.training.baselines.settings:DdqnTraining",
        ),
    },
)


SAMPLERS = Registry(
    "sampler",
    group="kscout.samplers",
    base="kscout.training.joint.sampler:Sampler",
    make=EstimatorEntry,
    room="kscout.training",
    entries={
        "fixed": EstimatorEntry(
            "joint.sampler:Fixed",
            "one order, fitted greedily to the present network",
            settings="kscout.config.joint:FixedSampling",
            policy="fixed",
        ),
        "dense": EstimatorEntry(
            "joint.sampler:DenseGains",
            "an adaptive policy trained by regression on column gains",
            settings="kscout.config.joint:DenseSampling",
            policy="column",
        ),
        "loupe": EstimatorEntry(
            "baselines.straight_through:Loupe",
            "one learned density with an exact budget (after arXiv 1901.01960)",
            settings="kscout.training.baselines.settings:LoupeSampling",
            policy="density",
        ),
        "straight-through": EstimatorEntry(
            "baselines.straight_through:StraightThrough",
            "an adaptive policy with straight-through gradients (after arXiv 2105.06460)",
            settings="kscout.training.baselines.settings:StraightThroughSampling",
            policy="column",
        ),
        "random": EstimatorEntry(
            "joint.sampler:AtRandom",
            "random columns",
            settings="kscout.config.joint:RandomSampling",
            policy="random",
        ),
    },
)
"""Sampling in joint training: `train joint --method`."""


def unknown_policy(name: str, choices: Sequence[str]) -> ConfigError:
    """Return the error for an unknown policy; the name of a training method needs its runs."""
    method = name.rpartition("=")[2]
    for command, table in (("policy", ESTIMATORS), ("joint", SAMPLERS)):
        if method in table.entries:
            return ConfigError(
                f"{method!r} is a training method and no policy; train one with kscout train "
                f"{command} --method {method}, and give its run folder"
            )
    return unknown_source("policy", name, choices)


def label_of(method: str, settings: Mapping[str, object]) -> str:
    """Return the label of an estimator's runs with these settings, for tables."""
    method = current("estimator", method)
    entry = ESTIMATORS.entries.get(method)
    try:
        return (entry.label or method).format(**settings) if entry else method
    except (KeyError, TypeError, ValueError):
        return method


METRICS = Registry(
    "metric",
    group="kscout.metrics",
    base="",
    make=Entry,
    room="kscout",
    entries={
        "ssim": Entry("metrics:ssim", "structural similarity"),
        "psnr": Entry("metrics:psnr", "peak signal-to-noise ratio in dB"),
        "nmse": Entry("metrics:negative_nmse", "minus the normalized squared error"),
    },
    like=lambda images, targets, *, data_range: None,
)
"""Metrics for rewards: functions of images and targets, larger is better."""


def metric_word(metric: str) -> str:
    """Return the name of a metric's values in records: its function, or `score` for other ones."""
    entry = METRICS.entries.get(metric)
    return entry.target.rpartition(":")[2] if entry else "score"


ANALYSES = Registry(
    "analysis",
    group="kscout.analyses",
    base="kscout.evaluation.analyses:Analysis",
    make=Entry,
    room="kscout.evaluation.analyses",
    entries={
        "policy": Entry(
            "average_policy:AveragePolicies",
            "fraction of slices with each column measured, by step",
        ),
        "entropy": Entry("entropy:Entropy", "how much policies adapt to the image"),
        "unexplored": Entry("unexplored:Unexplored", "columns that policies almost never sample"),
        "snr": Entry("snr:Snr", "signal-to-noise ratio of gradients"),
        "gammas": Entry("gammas:Gammas", "final scores by discount"),
        "curves": Entry("curves:Curves", "learning curves"),
        "reconstructions": Entry(
            "reconstructions:Reconstructions", "reconstructions of the same slices and masks"
        ),
        "examples": Entry("examples:Examples", "reconstructions of selected slices"),
        "masks": Entry("masks:Masks", "measured columns and their order, as files"),
    },
)

__all__ = [
    "ANALYSES",
    "ESTIMATORS",
    "FORMATS",
    "IMPORT_PRESETS",
    "METRICS",
    "POLICIES",
    "PROTOCOLS",
    "RAW_FORMATS",
    "RECONSTRUCTORS",
    "SAMPLERS",
    "SOURCES",
    "TARGETS",
    "Entry",
    "EstimatorEntry",
    "FormatEntry",
    "ImageFormat",
    "Origin",
    "PhaseEncoding",
    "Plane",
    "PolicyEntry",
    "Protocol",
    "ReconstructorEntry",
    "Registry",
    "SourceEntry",
    "check_label",
    "check_protocol",
    "check_target",
    "import_target",
    "is_outside",
    "label_of",
    "metric_word",
    "trainable_reconstructions",
    "unknown_policy",
    "untrained_reconstructions",
    "use",
    "used",
]
