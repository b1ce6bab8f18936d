"""Settings of a run: classes and presets, read strictly (`records`).

`schema` has whole files; `reconstructor`, `policy` and `joint` the section `[training]` of each;
`variation` how slices may be varied in it.
"""

from kscout.config.bounds import check_bounded
from kscout.config.ensemble import EnsembleTraining
from kscout.config.joint import (
    DenseSampling,
    FixedSampling,
    JointTraining,
    LearnedSampling,
    RandomSampling,
)
from kscout.config.layers import differences, given, listed, merge, read_file, section
from kscout.config.methods import settings_class
from kscout.config.policy import (
    DenseTraining,
    FrozenPrecision,
    GradientTraining,
    GreedyTraining,
    NonGreedyTraining,
    PolicyTraining,
    estimators_with,
    training_of,
)
from kscout.config.posterior import PosteriorTraining
from kscout.config.reconstructor import ReconstructorTraining
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
from kscout.config.step_sizes import learning_rate_at, warmed_rate
from kscout.config.variation import VariedSlices
