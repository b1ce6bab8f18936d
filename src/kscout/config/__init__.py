"""Settings of a run: classes and presets (`schema`), read strictly from TOML (`toml`)."""

from kscout.config.schema import (
    ACQUISITIONS,
    POLICY_TRAININGS,
    RECONSTRUCTOR_TRAININGS,
    AcquisitionSetting,
    Component,
    Config,
    PolicyConfig,
    PolicyTraining,
    ReconstructorConfig,
    ReconstructorTraining,
    learning_rate_at,
)
from kscout.config.toml import dump_config, from_table, read_config, to_table, with_settings

__all__ = [
    "ACQUISITIONS",
    "POLICY_TRAININGS",
    "RECONSTRUCTOR_TRAININGS",
    "AcquisitionSetting",
    "Component",
    "Config",
    "PolicyConfig",
    "PolicyTraining",
    "ReconstructorConfig",
    "ReconstructorTraining",
    "dump_config",
    "from_table",
    "learning_rate_at",
    "read_config",
    "to_table",
    "with_settings",
]
