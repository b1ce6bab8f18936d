"""In a notebook: public names show themselves, and ten lines reach a trained policy."""

import base64
import inspect
import io
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

import kscout
from kscout.data import KINDS, StoreWriter
from kscout.figures.notebook import training_html
from kscout.figures.style import COLORS
from kscout.names import POLICIES
from kscout.zoo import ZOO
from synthetic_results import make_summary
from website.tutorials import PAGES


def pictures(html: str) -> list[Image.Image]:
    data = re.findall(r'src="data:image/webp;base64,([^"]+)"', html)
    return [Image.open(io.BytesIO(base64.b64decode(one))) for one in data]


@pytest.mark.parametrize(("n_coils", "words"), [(None, "5 test slices of 9×11"), (3, "3 coils")])
def test_a_store_shows_slices_of_any_kind(tmp_path: Path, n_coils: int | None, words: str) -> None:
    shape = (5, 9, 11) if n_coils is None else (5, n_coils, 9, 11)
    values = np.random.default_rng(0).random(shape, dtype=np.float32)
    kind, values = ("images", values) if n_coils is None else ("kspace", values + 0j)
    with StoreWriter(tmp_path / "store", {}, kind=KINDS[kind]) as writer:
        writer.append("test", "volume", values)
        store = writer.finish()
    html = store._repr_html_()
    assert words in html
    assert (
        repr(store) == f"Store store: 5 test slices of 9×11; fingerprint {store.fingerprint[:12]}"
    )
    assert pictures(html)[0].size == (5 * 11 + 4 * 2, 9)
    assert html.count("max-width: 100%") == 2, "wide pictures would be cut on small screens"


def test_an_evaluation_shows_the_table_of_its_report() -> None:
    summary = make_summary()
    html = summary._repr_html_()
    for policy in summary.policies:
        assert f">{policy.policy}</th>" in html
        assert f"{policy.ssim:.4f}" in html


def test_a_run_without_an_epoch_says_so(tmp_path: Path) -> None:
    assert "no epoch yet" in training_html("run", "policy", [])
    (tmp_path / "config.toml").write_text('kind = "policy"\n[training]\nseed = 0\n')
    (tmp_path / "provenance.json").write_text("{}")
    assert repr(kscout.read_run(tmp_path)) == f"Run {tmp_path} (policy, not finished): no epoch yet"
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1, "val_ssim": 0.25}\n')
    assert repr(kscout.read_run(tmp_path)).endswith(
        "(policy, not finished): epoch 1, val_ssim 0.25"
    )


def test_every_color_has_a_value_outside_of_reports() -> None:
    html = training_html("run", "policy", [{"epoch": 1, "train_ssim": 0.5, "val_ssim": 0.6}])
    assert not re.findall(r"var\(--[\w-]+\)", html)
    assert {(name, COLORS[name]) for name in ("--ink", "--series-1")} <= set(
        re.findall(r"var\((--[\w-]+), (#\w+)\)", html)
    )


def test_names_of_runs_cannot_speak_to_the_page() -> None:
    html = training_html("<b>", "policy", [{"epoch": 1, "val_ssim": 0.6}])
    assert "<b>" not in html and "&lt;b&gt;" in html


def test_help_and_dir_show_the_public_names() -> None:
    shown = pydoc.render_doc(kscout, renderer=pydoc.plaintext)
    assert set(kscout.__all__) == set(dir(kscout))
    for name in kscout.__all__:
        value = getattr(kscout, name)
        if callable(value):
            assert re.search(rf"^    (class )?{name}\(", shown, flags=re.MULTILINE), name
        elif isinstance(value, ModuleType):
            assert re.search(rf"^    {name}\b", shown, flags=re.MULTILINE), name


def examples() -> Iterator[str]:
    """Yield the code that the help and README.md show."""
    yield "\n".join(re.findall(r"^(?: {4}(.*))?$", kscout.__doc__ or "", flags=re.MULTILINE))
    text = (PAGES[0].parents[2] / "README.md").read_text(encoding="utf-8")
    yield from re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("code", [*examples()], ids=["help", "readme"])
def test_the_first_examples_are_whole(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is drawn or trained here: what they call is told what it would be told."""
    called: dict[str, tuple[object, ...]] = {}
    names = [name for name in ("make_store", "train_policy", "evaluate") if name in code]
    real = {name: getattr(kscout, name) for name in names}
    for name in names:
        monkeypatch.setattr(kscout, name, lambda *given, own=name: called.update({own: given}))
    exec(code, {})
    assert list(called) == names
    for name, given in called.items():
        inspect.signature(real[name]).bind(*given)
    trained = called.get("train_policy", [None])[-1]
    for policy in called["evaluate"][0]:
        assert policy in POLICIES or policy in ZOO or policy == trained
