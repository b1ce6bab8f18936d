"""Settings of 0.2 that were removed: dropped without effect, rejected with one."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kscout.config import of_0_2, read_file, settle, supported
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


def test_names_of_runs_in_campaigns_tell_all_settings_of_0_2() -> None:
    table = {"kind": "policy", "training": {"method": "posterior", "turn": 5.0}}
    had = {"completion": "none", "n_trusted": 128, "turn": 5.0, "bend": 0.0}

    assert of_0_2(table)["training"] == {"method": "imagine", **had}
    assert of_0_2({"training": {"method": "greedy"}})["training"] == {"method": "greedy"}


def test_files_of_runs_are_read_without_retired_settings(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        'kind = "policy"\n[policy]\nname = "column"\npaired = false\nwidth = 8\n'
        '[training]\nmethod = "dense"\nslopes = false\nturn = 5.0\n'
    )
    assert read_file(file) == {
        "kind": "policy",
        "policy": {"name": "column", "width": 8},
        "training": {"method": "dense", "turn": 5.0},
    }
