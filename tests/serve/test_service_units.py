"""A constant factor of k-space changes no decision of a service, over HTTP or as an MRD stream."""

import base64
import io
import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from asgi_client import Client
from mrd_client import acquisition, listening, talking
from test_mrd_stream import HEADER, SHIFT

from kscout.apps.serve.app import make_app
from kscout.apps.serve.sessions import Limits, Sessions, advisor_maker
from kscout.core import Policy, Reconstructor
from kscout.reconstruction.unet import UNet
from tiny_sessions import FACTORS, HORIZON, N_COLS, N_INITIAL, N_ROWS, column_policy

Found = tuple[list[int], list[float], np.ndarray]
"""Columns in the order of their choice, the scores of the last choice, and the image."""
ASKED = {"budget": N_INITIAL + HORIZON, "n_initial": N_INITIAL}


@pytest.fixture(scope="module")
def components() -> tuple[Reconstructor, Policy]:
    torch.manual_seed(3)
    return UNet(n_channels=2, n_pools=1, protocol="blind"), column_policy()


def by_http(sessions: Sessions, kspace: np.ndarray) -> Found:
    with Client(make_app(sessions)) as client:
        asked = {"n_rows": N_ROWS, "n_cols": N_COLS, **ASKED}
        place = "/sessions/{id}".format(**client.post("/sessions", asked).json())
        wanted, order, scores = client.get(place).json()["next_columns"], [], []
        while wanted:
            order += wanted
            sent = [(x, base64.b64encode(kspace[:, :, x].tobytes()).decode()) for x in wanted]
            columns = [{"column": x, "data": data} for x, data in sent]
            answer = client.post(f"{place}/columns", columns).json()
            wanted, scores = answer["next_columns"], answer["scores"] or scores
        return order, scores, np.load(io.BytesIO(client.get(f"{place}/image.npy").body))


def by_mrd(sessions: Sessions, kspace: np.ndarray) -> Found:
    with listening(sessions) as address, talking(address, HEADER, **ASKED) as (sender, found):
        wanted, order, scores = json.loads(next(found))["columns"], [], []
        while wanted:
            order += wanted
            for column in wanted:
                sender.serialize(acquisition(kspace[:, :, column], column + SHIFT))
            sender._stream.flush()
            answer = json.loads(next(found))
            wanted, scores = answer["next_columns"], answer["scores"] or scores
        image = next(found).data[0, 0].T
        sender.close()
    return order, scores, image


@pytest.mark.parametrize("acquired", [by_http, by_mrd])
def test_decisions_and_images_are_independent_of_the_unit_of_kspace(
    components: tuple[Reconstructor, Policy], acquired: Callable[[Sessions, np.ndarray], Found]
) -> None:
    network, policy = components
    make = advisor_maker(network, lambda _: policy, device=torch.device("cpu"))
    parts = np.random.default_rng(0).normal(size=(2, 1, N_ROWS, N_COLS))
    kspace = parts[0] + 1j * parts[1]
    found = [
        acquired(Sessions(make, limits=Limits()), (factor * kspace).astype(np.complex64))
        for factor in (1, *FACTORS)
    ]
    order, scores, image = found[0]
    for factor, (its_order, its_scores, its_image) in zip(FACTORS, found[1:], strict=True):
        assert its_order == order
        np.testing.assert_allclose(its_scores, scores, rtol=1e-4, atol=1e-4)
        assert np.abs(its_image / abs(factor) - image).max() < 1e-4 * image.max()
