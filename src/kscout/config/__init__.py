"""Settings of a run: classes and presets, read strictly (`records`).

`schema` has whole files; `training` and `joint` have the section `[training]`.
"""

from kscout.config.bounds import check_bounded
from kscout.config.joint import (
    DenseSampling,
    FixedSampling,
    JointTraining,
    LearnedSampling,
    RandomSampling,
)
from kscout.config.layers import differences, given, listed, merge, read_file, section
from kscout.config.records import (
    check,
    check_arguments,
    load,
    read,
    save,
    settle,
    to_table,
    to_toml,
)
from kscout.config.retired import of_0_2, of_today, supported
from kscout.config.schema import (
    ACQUISITIONS,
    RECONSTRUCTOR_TRAININGS,
    AcquisitionSetting,
    Component,
    Config,
    JointConfig,
    PolicyConfig,
    ReconstructorConfig,
)
from kscout.config.training import (
    DenseTraining,
    EnsembleTraining,
    FrozenPrecision,
    GradientTraining,
    GreedyTraining,
    NonGreedyTraining,
    PolicyTraining,
    PosteriorTraining,
    ReconstructorTraining,
    estimators_with,
    learning_rate_at,
    settings_class,
    training_of,
    warmed_rate,
)
