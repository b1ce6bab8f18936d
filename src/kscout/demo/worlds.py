"""The section on two worlds: a reconstruction that stays as it is, and one that learns as well."""

from typing import NamedTuple

from kscout.demo.settings import JOINT_SAMPLERS, LEARNED, REFERENCE, DemoFolder, DemoSettings
from kscout.demo.stages import CHOOSERS, lead_over
from kscout.demo.words import say
from kscout.evaluation.summaries.summary import Difference, read_summary
from kscout.figures.blocks import Prose, Section
from kscout.figures.tables import Column, Measured, Row, Table

TITLE = "Two worlds: a frozen network, and one that learns as well"


class World(NamedTuple):
    """What one pair of network and chooser reached."""

    network: str
    chooser: str
    ssim: float
    over_order: Difference | None
    """To the best fixed order on the same network; None for that order."""
    over_start: Difference | None
    """To the fixed order on the frozen network; None for itself."""


def worlds_of(folder: DemoFolder) -> list[World]:
    """Return all pairs, those on the frozen network first; differences are paired by slice."""
    frozen = folder.evaluation
    found = []
    for network, where in (
        ("frozen", {name: frozen for name in JOINT_SAMPLERS}),
        ("trained together", folder.joint),
    ):
        for name, out in where.items():
            ssim = {one.policy: one.ssim for one in read_summary(out).policies}[name]
            order = None if name == REFERENCE else lead_over(out, name, REFERENCE)
            is_start = (out, name) == (frozen, REFERENCE)
            start = None if is_start else lead_over(out, name, REFERENCE, frozen)
            found.append(World(network, CHOOSERS[name], ssim, order, start))
    return found


def worlds_section(settings: DemoSettings, folder: DemoFolder) -> Section:
    """Return the table of pairs, and what it says."""
    worlds = worlds_of(folder)
    columns = (
        Column("network"),
        Column("columns chosen by"),
        Column("SSIM", best="max"),
        Column("minus a fixed order on the same network", is_signed=True),
        Column("minus the fixed order on the frozen one", is_signed=True),
    )
    rows = tuple(
        Row(
            (
                one.network,
                one.chooser,
                Measured(one.ssim),
                *map(_cell, (one.over_order, one.over_start)),
            )
        )
        for one in worlds
    )
    note = say("worlds_note", n_updates=settings.n_updates, n_fixed_slices=settings.n_fixed_slices)
    table = Table("Final SSIM of network and chooser", columns, rows, note, "worlds")
    return Section(TITLE, (Prose(tell_worlds(worlds)), table))


def tell_worlds(worlds: list[World]) -> str:
    """Say what training the network brought, and what choosing by the image did in each world."""
    by = {(one.network, one.chooser): one for one in worlds}
    order, policy = CHOOSERS[REFERENCE], CHOOSERS[LEARNED]
    network = by["trained together", order].over_start
    frozen, joint = (by[name, policy].over_order for name in ("frozen", "trained together"))
    assert network is not None and frozen is not None and joint is not None
    told = {"network": network, "frozen": frozen, "joint": joint}
    words = say("worlds", **{name: _signed(one) for name, one in told.items()})
    is_alike = joint.difference == 0 and joint.interval in (None, (0, 0))
    return f"{words} {say('worlds_alike')}" if is_alike else words


def _cell(found: Difference | None) -> Measured | None:
    return None if found is None else Measured(found.difference, interval=found.interval)


def _signed(found: Difference) -> str:
    text = f"{found.difference:+.4f}"
    if found.interval is not None:
        text += " ({:+.4f} to {:+.4f})".format(*found.interval)
    return text.replace("-", "−")
