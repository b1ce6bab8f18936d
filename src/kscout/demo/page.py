"""The page of the demo: sentence, player and chart; what was trained here; then all numbers."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import torch

from kscout.data.store import Store
from kscout.demo.commands import commands_of, next_commands
from kscout.demo.paper_size import TITLE as AT_SIZE
from kscout.demo.paper_size import paper_size_section, tell_scores
from kscout.demo.seeds import tell_seeds
from kscout.demo.settings import (
    LEARNED,
    ORACLES,
    REFERENCE,
    ZOO_BASELINES,
    ZOO_SIZE,
    ZOO_UNET,
    DemoFolder,
    DemoSettings,
)
from kscout.demo.stages import ZooRun, lead_over
from kscout.demo.words import say
from kscout.demo.worlds import worlds_section
from kscout.evaluation.analyses.reconstructions import Reconstructions
from kscout.evaluation.summaries.summary import Difference, read_summary
from kscout.figures.blocks import Drawing, Prose, Section, Widget
from kscout.figures.curves import draw_differences
from kscout.figures.pictures import draw_montage
from kscout.report.build import PLAYER_TITLE, build_report, player_widget, write_report
from kscout.report.commands import as_shell, code_html
from kscout.report.evaluations import differences_of
from kscout.report.folders import search

TITLE = "Learning which k-space columns to measure: the paper in miniature"
LEAD_TITLE = "The lead over the fixed order"
HERE_TITLE = "Trained here"
_N_SHOWN = 8


def write_demo_page(
    settings: DemoSettings,
    folder: DemoFolder,
    store: Store,
    zoo: Sequence[ZooRun],
) -> Path:
    """Write the self-contained page and return its path."""
    whole = [*folder.runs, folder.evaluation, folder.reconstructions]
    report, few = build_report(whole, title=TITLE), build_report([folder.headroom])
    parts = {one.title: one for one in report.sections}
    compared = parts.pop(Reconstructions.title)
    # The slice in the player is one of those that the oracle ran on.
    player = next(one for one in few.sections if one.title == PLAYER_TITLE)
    bounds = next(one for one in few.sections if one.title == "Scores")
    del parts[PLAYER_TITLE]
    at_size = paper_size_section(zoo)
    ordered = (
        _opening(zoo[0]),
        _lead_section(settings, folder),
        Section(HERE_TITLE, (Prose(tell_here(settings, folder)), *player.blocks[:1])),
        worlds_section(settings, folder),
        _commands("What to try next", say("next"), next_commands(settings, folder)),
        *parts.values(),
        replace(
            bounds, title="How much is possible", blocks=(Prose(_room(settings)), *bounds.blocks)
        ),
        data_section(settings, store),
        replace(compared, blocks=(Prose(say("reconstructions")), *compared.blocks)),
        replace(at_size, blocks=(Prose(tell_scores(zoo)), *at_size.blocks)),
        _how(settings, folder),
    )
    told = (tell_lead(settings, folder),)
    subtitle = say("subtitle_quick" if settings.is_quick else "subtitle")
    front = replace(report.front, subtitle=subtitle, summary=told)
    others = [
        folder.headroom,
        folder.lead,
        *folder.joint.values(),
        *(folder.zoo(x.acquisition.name) for x in zoo),
    ]
    provenance = {**report.provenance, **search(others).provenance}
    page = replace(report, front=front, sections=ordered, provenance=provenance)
    (path,) = write_report(page, folder.page)
    return path


def tell_lead(settings: DemoSettings, folder: DemoFolder) -> str:
    """Say by how much the zoo's policy beats the fixed order on knees that nobody saw."""
    one, summary = settings.paper_size.acquisitions[0], read_summary(folder.lead)
    weights = {"unet": ZOO_UNET, "policy": one.policies[one.told]}
    counts = {"n_slices": summary.n_slices, "n_volumes": summary.n_volumes}
    lead = lead_over(folder.lead, one.told, one.reference)
    return tell_claim(
        "claim", lead, **weights, n_columns=one.n_initial + one.horizon, **counts, size=ZOO_SIZE
    )


def tell_here(settings: DemoSettings, folder: DemoFolder) -> str:
    """Say the same of the policy that was trained here."""
    summary, n_columns = read_summary(folder.evaluation), settings.n_initial + settings.horizon
    counts = {"n_slices": summary.n_slices, "n_volumes": summary.n_volumes}
    lead = lead_over(folder.evaluation, LEARNED, REFERENCE)
    return tell_claim(
        "claim_here", lead, learned=LEARNED, n_columns=n_columns, **counts, size=settings.size
    )


def tell_claim(what: str, lead: Difference, **values: object) -> str:
    """Say by how much a policy beats the fixed order, and whether that is chance.

    Args:
        what: name of the sentence.
        lead: the paired difference.
        values: what else it names.
    """
    low, high = lead.interval or (-np.inf, np.inf)
    verdict = "holds" if low > 0 else "fails" if high < 0 else "level"
    ends = "none" if lead.interval is None else f"{low:+.4f} to {high:+.4f}".replace("-", "−")
    side = "above" if lead.difference >= 0 else "below"
    told = {"lead": f"{abs(lead.difference):.4f} {side}", "interval": ends}
    return say(what, **told, **values, verdict=say(f"claim_{verdict}"))


def _opening(run: ZooRun) -> Section:
    """Let one slice be acquired step by step, by the policy of the first sentence and others."""
    one, named = run.acquisition, f"{run.acquisition.told} of the zoo"
    policies = (replace(x, name=named) if x.name == one.told else x for x in run.played.policies)
    shown = (named, one.reference, ZOO_BASELINES[0], *ORACLES)
    played = replace(run.played, policies=tuple(policies), shown=shown)
    has_oracle = any(policy.is_oracle for policy in played.policies)
    told = {"policy": one.policies[one.told], "reference": one.reference}
    text = say("played", unet=ZOO_UNET, **told) + (say("played_oracle") if has_oracle else "")
    at = {"volume": run.examples[0].volume, "slice": run.examples[0].slice, "section": AT_SIZE}
    title = say("played_title", **at, **told)
    return Section(PLAYER_TITLE, (Prose(text), player_widget(replace(played, title=title), "zoo")))


def _lead_section(settings: DemoSettings, folder: DemoFolder) -> Section:
    """Draw the lead of the first sentence column by column, and tell how often it was found."""
    whole, one = read_summary(folder.lead), settings.paper_size.acquisitions[0]
    told = {"n_slices": whole.n_slices, "n_volumes": whole.n_volumes}
    caption = say("lead_caption", learned=one.policies[one.told], **told)
    figure = draw_differences(differences_of(whole), reference=one.reference)
    return Section(LEAD_TITLE, (Drawing(figure, "lead", caption), Prose(tell_seeds())))


def _room(settings: DemoSettings) -> str:
    return say("room", n_slices=settings.n_oracle_slices)


def data_section(settings: DemoSettings, store: Store) -> Section:
    """Show some training images, and say what they are."""
    slices = store.split("train")
    places = np.linspace(0, len(slices) - 1, _N_SHOWN).round().astype(int)
    counts = zip(("n_train", "n_val", "n_test"), settings.volumes, strict=True)
    text = say(
        "images",
        n_knees=sum(settings.volumes),
        slices=settings.slices,
        size=settings.size,
        **{name: n * settings.slices for name, n in counts},
    )
    images = slices.batch(torch.from_numpy(places)).target
    figure = draw_montage([np.asarray(image) for image in images])
    drawing = Drawing(figure, "images", say("images_caption"), is_wide=True)
    return Section("Images", (Prose(text), drawing))


def _how(settings: DemoSettings, folder: DemoFolder) -> Section:
    """Show how each step is redone by hand, and what differs from the paper."""
    commands = commands_of(settings, folder)
    section = _commands("How this was made", say("commands"), commands)
    return replace(section, blocks=(Prose(say("differs", **vars(settings))), *section.blocks))


def _commands(title: str, text: str, commands: dict[str, list[str]]) -> Section:
    widgets = [Widget(_code(name, as_shell(words))) for name, words in commands.items()]
    return Section(title, (Prose(text), *widgets))


def _code(title: str, text: str) -> str:
    return f'<p style="margin:0 0 .3rem"><b>{escape(title)}</b></p>{code_html(text)}'
