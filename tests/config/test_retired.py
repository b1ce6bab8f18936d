"""Settings of 0.2 that were removed: dropped without effect, rejected with one."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kscout.config import settle, supported, with_retired
from kscout.config.retired import RETIRED
from kscout.errors import ConfigError


@dataclass(frozen=True)
class _Training:
    seed: int = 0


@dataclass(frozen=True)
class _Settings:
    training: _Training = field(default_factory=_Training)
    analyses: _Training = field(default_factory=_Training)


_OF_SECTIONS = [name for name in RETIRED if name.partition(".")[0] in ("training", "analyses")]
_WITH_EFFECT = [name for name, one in RETIRED.items() if not one.is_any_neutral]


@pytest.mark.parametrize("name", _OF_SECTIONS)
def test_a_section_may_name_a_retired_setting_at_the_value_without_effect(
    name: str, tmp_path: Path
) -> None:
    section, _, key = name.partition(".")
    default = repr(RETIRED[name].default).lower()
    file = tmp_path / "settings.toml"
    file.write_text(f"[{section}]\nseed = 1\n{key} = {default}\n")

    assert getattr(settle(_Settings(), file, [], {}), section) == _Training(seed=1)
    assert settle(_Settings(), None, [f"{name}={default}"], {}) == _Settings()


@pytest.mark.parametrize("name", RETIRED)
def test_arguments_are_dropped_at_the_value_without_effect(name: str) -> None:
    section, _, key = name.partition(".")
    default = RETIRED[name].default

    assert supported({"seed": 1, key: default}, ["seed"], section) == {"seed": 1}
    assert supported({key: default}, [key], section) == {key: default}


@pytest.mark.parametrize("name", _WITH_EFFECT)
def test_another_value_of_a_retired_setting_is_rejected_in_one_sentence(name: str) -> None:
    section, _, key = name.partition(".")

    with pytest.raises(ConfigError) as caught:
        supported({key: 7}, [], section)

    told = str(caught.value)
    assert told.startswith(f"{name} is 7; version 0.3 removed this setting because ")
    assert told.endswith("; leave it out, or use version 0.2")


def test_names_of_runs_in_campaigns_tell_all_settings_of_their_method() -> None:
    assert with_retired({"method": "imagine", "turn": 5.0}) == {
        "method": "imagine",
        "completion": "none",
        "n_trusted": 128,
        "turn": 5.0,
        "bend": 0.0,
    }
    assert with_retired({"method": "greedy"}) == {"method": "greedy"}
