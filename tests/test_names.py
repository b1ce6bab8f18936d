"""Names find what they stand for, from inside and outside, and files import nothing new."""

import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import kscout
from kscout.data import kinds
from kscout.errors import ConfigError
from kscout.names import (
    FORMATS,
    POLICIES,
    RAW_FORMATS,
    RECONSTRUCTORS,
    SOURCES,
    TARGETS,
    Entry,
    Registry,
    import_target,
    is_outside,
    untrained_reconstructions,
)
from kscout.policies import save
from kscout.policies.random import Random

OWN = """
from kscout.core import Policy

class Own(Policy):
    def forward(self, seen):
        return seen.mask.float()

class NoPolicy:
    pass
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module in the working directory, which no import path holds."""
    name = f"outside_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    return name


@pytest.mark.parametrize("table", [POLICIES, RECONSTRUCTORS], ids=lambda table: table.kind)
def test_every_name_stands_for_a_class_that_is_found_again(table: Registry) -> None:
    for name in table:
        assert table.name_of(table.resolve(name)) == name


@pytest.mark.parametrize(
    "table", [SOURCES, FORMATS, RAW_FORMATS], ids=["sources", "formats", "raw formats"]
)
def test_every_source_and_format_has_its_function(table: Mapping[str, Entry]) -> None:
    for entry in table.values():
        assert callable(import_target(entry.target, of="function"))


def test_a_reader_takes_the_options_that_its_entry_names() -> None:
    for entry in (*FORMATS.values(), *RAW_FORMATS.values()):
        parameters = inspect.signature(import_target(entry.target, of="reader")).parameters
        assert tuple(parameters)[1:] == entry.options
        assert not entry.needs or importlib.util.find_spec(entry.needs) is not None


def test_every_rule_of_targets_has_its_kind_of_store() -> None:
    assert tuple(kinds.TARGETS) == TARGETS


def test_a_class_in_the_working_directory_is_found_by_module_and_class(outside: str) -> None:
    found = POLICIES.resolve(f"{outside}:Own")
    assert found.__name__ == "Own"
    assert POLICIES.name_of(found) == f"{outside}:Own"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "unknown policy 'nothing'; choose one of:"),
        ("runs/nothing", "runs/nothing does not exist; give the path of a policy that does"),
        ("equispaced", r"unknown policy 'equispaced' \(did you mean 'equispaced-(one|two)'\?\)"),
        ("no_such_module:Class", "cannot import the policy no_such_module:Class"),
        ("json:Class", "json has no 'Class'"),
        ("json:JSONDecoder", "is no policy: it does not derive from kscout.core.Policy"),
    ],
)
def test_a_name_that_stands_for_no_policy_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        POLICIES.resolve(name)


def test_a_class_inside_a_function_has_no_name() -> None:
    class Inner(Random):  # type: ignore[misc]
        pass

    with pytest.raises(ConfigError, match="inside a function"):
        POLICIES.name_of(Inner)


@pytest.mark.parametrize("name", ["a:B", "a.b:C", "a.b:C.D"])
def test_module_and_class_are_told_from_paths(name: str) -> None:
    assert is_outside(name)
    assert not any(is_outside(other) for other in ("C:\\runs", "a/b:C", "runs/x", "a:", ":B"))


def started(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_weights_of_an_outside_class_open_only_where_its_module_is_named(
    tmp_path: Path, outside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.safetensors"
    save(file, POLICIES.resolve(f"{outside}:Own")())
    # As in a process that has not heard of it.
    monkeypatch.setattr("kscout.names.table._used", set())
    monkeypatch.delitem(sys.modules, outside)
    told = f"kscout --use {outside} COMMAND, KSCOUT_USE={outside}, or kscout.use\\('{outside}'\\)"
    with pytest.raises(ConfigError, match=told):
        kscout.policies.load(file)
    assert outside not in sys.modules
    kscout.use(outside)
    assert type(kscout.policies.load(file)).__name__ == "Own"


@pytest.mark.slow
def test_the_command_line_uses_modules_and_tells_its_version(tmp_path: Path) -> None:
    assert (
        started("-m", "kscout", "--version", cwd=tmp_path).stdout
        == f"kscout {kscout.__version__}\n"
    )
    refused = started("-m", "kscout", "--use", "no/module", "zoo", "--help", cwd=tmp_path)
    assert "'no/module' is no module" in refused.stderr


def test_help_lists_the_names_of_the_tables(tmp_path: Path) -> None:
    said = "".join(
        started("-m", "kscout", "evaluate", "--help", cwd=tmp_path).stdout.replace("│", "").split()
    )
    assert ",".join(POLICIES.entries) in said


WITHOUT_TORCH = """
import sys
from pathlib import Path
import kscout.apps.cli
heavy = {"torch", "numpy", "scipy", "h5py", "matplotlib", "gymnasium", "distributed"}
assert not {*heavy, "kscout.apps.campaign.execute"} & sys.modules.keys()
import kscout.names
for name in kscout.names.ANALYSES.entries:
    kscout.names.ANALYSES.resolve(name)
assert not {"torch", "matplotlib"} & sys.modules.keys()
import kscout.apps.cli.data, kscout.apps.player, kscout.data
kscout.names.POLICIES["conv"], list(kscout.names.ESTIMATORS), kscout.data.__all__
kscout.use("json")
assert not {"torch", "h5py"} & sys.modules.keys()
import kscout.apps.cli.campaign_display, kscout.data.makers.parallel
root = Path(sys.argv[1])
kscout.apps.cli.campaign_display.plan_of(root / "configs/campaign-small.toml", None, "cpu")
from kscout.runs import read_run
artifacts = root / "tests/fuzz/artifacts"
assert read_run(artifacts / "greedy").metrics
assert "torch" not in sys.modules
from kscout.apps.report.build import build_report
report = build_report([artifacts / "results", artifacts / "analyses"])
assert {"Scores", "Adaptivity", "Training"} <= {one.title for one in report.sections}
assert "torch" not in sys.modules
"""


def test_torch_is_loaded_only_where_it_is_needed(tmp_path: Path) -> None:
    """Commands load NumPy only when they run; plans, run folders, tables and reports need none."""
    root = Path(__file__).parents[1]
    done = started("-c", WITHOUT_TORCH, str(root), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_what_is_for_coils_alone_is_left_out_of_comparisons_on_images() -> None:
    of_images = set(untrained_reconstructions(of_coils=False))
    assert of_images == {"zero-filled", "total-variation"}
    assert of_images < set(untrained_reconstructions())


MODULE = """
from kscout.exports import lazily

with lazily():
    import decimal
    from decimal import Decimal, getcontext
    from xml import dom
    from importlib import missing

def doubled(value: Decimal | int) -> Decimal:
    return Decimal(value) * 2
"""

CHECKS = """
import sys
import lazy
assert "decimal" not in sys.modules and "xml.dom" not in sys.modules
assert str(lazy.doubled(3)) == "6"
assert isinstance(lazy.doubled(3), lazy.Decimal) and not isinstance(3, lazy.Decimal)
assert issubclass(sys.modules["decimal"].Decimal, lazy.Decimal)
assert lazy.decimal.MAX_PREC and lazy.getcontext().prec and lazy.dom.Node.ELEMENT_NODE == 1
import fractions
assert fractions.Fraction is not lazy.Decimal and isinstance(fractions, type(sys))
try:
    lazy.missing.anything
except ModuleNotFoundError as error:
    assert "importlib.missing" in str(error)
else:
    raise AssertionError("a missing name was found")
"""


def test_a_postponed_import_stands_for_its_class_function_or_module(tmp_path: Path) -> None:
    (tmp_path / "lazy.py").write_text(MODULE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", CHECKS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
