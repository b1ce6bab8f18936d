"""An implementation serves where all that it needs is there; else the registry says why not."""

import logging
from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kscout import kernels
from kscout.errors import ConfigError
from kscout.kernels import KernelUnavailableError, cuda, registry
from kscout.kernels.convolution import Division, Workspace
from kscout.kernels.registry import OPERATIONS, Request, build, compiled_kernels, serving
from kscout.reconstruction import unet
from kscout.reconstruction.unet import HalfPrecisionUNet, UNet, has_kernels
from kscout.training.convolution import can_compile

CPU, GPU = torch.device("cpu"), torch.device("cuda")
UNET = Request(GPU, n_rows=128, n_cols=128, n_channels=16, n_levels=4)
POLICY = UNET
STATE = frozenset({torch.int64, torch.complex64, torch.bool, torch.float32})
ASKED = {
    "draw": Request(GPU, n_cols=128),
    "distinct": Request(GPU),
    "follow": Request(GPU, STATE),
    "measure": Request(GPU, frozenset({torch.complex64})),
    "ssim": Request(GPU),
    "unet": UNET,
    "policy": POLICY,
}


def forget() -> None:
    registry._serving.cache_clear()
    registry._logged.clear()
    kernels.kernels_are_on.cache_clear()
    cuda.compile_kernel.cache_clear()


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Pretend to have a GPU: a Hopper, unless a test changes it."""
    found = SimpleNamespace(capability=(9, 0), shared_memory_per_block_optin=227 * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: found.capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    kernel = SimpleNamespace(set_shared_memory_config=lambda _: None)
    monkeypatch.setattr(torch.cuda, "_compile_kernel", lambda *_: kernel, raising=False)
    return found


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [x.getMessage() for x in caplog.records if x.levelno == logging.WARNING]


def test_every_operation_ends_with_plain_torch() -> None:
    for operation in OPERATIONS.values():
        assert operation.implementations[-1][1:] == ("", ())
        assert [x.name for x in operation.implementations].count("torch") == 1


@pytest.mark.parametrize("operation", OPERATIONS)
def test_kernels_serve_a_gpu_that_has_all_they_need(operation: str, gpu: SimpleNamespace) -> None:
    assert serving(operation, ASKED[operation]) == "cuda"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_older_gpu_gets_plain_torch_and_one_warning(
    operation: str, gpu: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.capability = (7, 5)
    for _ in range(2):
        assert serving(operation, ASKED[operation]) == "torch"
        registry._serving.cache_clear()
    (sentence,) = warnings_of(caplog)
    assert "compute capability 8.0, and this GPU has 7.5" in sentence
    assert OPERATIONS[operation].summary in sentence


def test_another_gpu_than_the_current_one_gets_plain_torch(gpu: SimpleNamespace) -> None:
    request = Request(torch.device("cuda:1"))
    assert serving("ssim", request) == "torch"
    assert serving("ssim", request._replace(device=torch.device("cuda:0"))) == "cuda"


@pytest.mark.parametrize("fault", ["absent", "failing"])
def test_without_torchs_private_compiler_plain_torch_serves(
    fault: str,
    gpu: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if fault == "absent":
        monkeypatch.delattr(torch.cuda, "_compile_kernel")
    else:
        monkeypatch.setattr(torch.cuda, "_compile_kernel", lambda *_: 1 // 0)
    assert {serving(name, request) for name, request in ASKED.items()} == {"torch"}
    assert len(warnings_of(caplog)) == len(ASKED) and "was not compiled" in caplog.text


@pytest.mark.parametrize(
    ("operation", "change", "word"),
    [
        ("draw", {"n_cols": 4097}, "columns"),
        ("distinct", {"n_per_slice": 3}, "one state"),
        ("follow", {"dtypes": STATE | {torch.float64}}, "32 bit"),
        ("measure", {"n_coils": 4}, "one coil"),
        ("measure", {"dtypes": frozenset({torch.complex128})}, "32 bit"),
        ("ssim", {"convention": "fastmri"}, "window"),
        ("ssim", {"dtypes": frozenset({torch.float64})}, "floats"),
        ("unet", {"n_channels": 8}, "channels"),
        ("unet", {"n_channels": 48}, "channels"),
        ("unet", {"n_channels": 256}, "channels"),
        ("unet", {"n_rows": 640, "n_cols": 320}, ""),
        ("unet", {"n_cols": 100}, "sides"),
        ("unet", {"n_rows": 32}, "sides"),
        ("unet", {"n_rows": 640, "n_cols": 368}, "sides"),
        ("policy", {"n_channels": 4}, "channels"),
        ("policy", {"n_channels": 24}, "channels"),
        ("policy", {"n_levels": 0}, "channels"),
        ("policy", {"n_rows": 64, "n_cols": 80}, "sides"),
        ("policy", {"n_cols": 256, "n_channels": 8, "n_levels": 5, "n_rows": 256}, ""),
    ],
)
def test_what_kernels_do_not_fit_is_left_to_torch_and_told_without_alarm(
    operation: str,
    change: dict[str, Any],
    word: str,
    gpu: SimpleNamespace,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        found = serving(operation, ASKED[operation]._replace(**change))
    assert found == ("torch" if word else "cuda")
    assert word in caplog.text and not warnings_of(caplog)


@pytest.mark.parametrize(
    ("operation", "n_cols", "n_bytes", "serves"),
    [
        ("unet", 128, 99 * 1024, True),
        ("unet", 128, 64 * 1024, False),
        ("policy", 64, 99 * 1024, True),
        # An A100 has 163 KB, and strips of 128 columns take more.
        ("policy", 128, 163 * 1024, False),
        ("policy", 128, 227 * 1024, True),
        ("policy", 256, 99 * 1024, True),
    ],
)
def test_shared_memory_decides(
    operation: str,
    n_cols: int,
    n_bytes: int,
    serves: bool,
    gpu: SimpleNamespace,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gpu.shared_memory_per_block_optin = n_bytes
    request = UNET._replace(n_rows=n_cols, n_cols=n_cols, n_levels=3)
    assert serving(operation, request) == ("cuda" if serves else "torch")
    assert bool(warnings_of(caplog)) != serves


def test_convolutions_take_no_more_shared_memory_than_was_asked_for(gpu: SimpleNamespace) -> None:
    n_served = 0
    for size, n_channels, n_levels in product(
        (32, 64, 128, 256, 512), (16, 32, 64, 128), (1, 3, 5)
    ):
        request = Request(GPU, n_rows=size, n_cols=size, n_channels=n_channels, n_levels=n_levels)
        if serving("unet", request) != "cuda":
            continue
        n_served += 1
        for level in range(n_levels + 1):
            side, n_out = size >> level, n_channels << min(level, n_levels - 1)
            for n_in in (max(16, n_out // 2), n_out, 2 * n_out):
                division = Division.of(side, side, n_in, n_out, ups=True)
                assert division.n_bytes <= registry._UNET_BYTES
    assert n_served > 40


@pytest.mark.parametrize("value", ["off", "on", "", None])
def test_one_switch_turns_all_compiled_code_off(
    value: str | None,
    gpu: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("compiled")

    if value is None:
        monkeypatch.delenv("KSCOUT_KERNELS", raising=False)
    else:
        monkeypatch.setenv("KSCOUT_KERNELS", value)
    if value == "off":
        monkeypatch.setattr(torch.cuda, "_compile_kernel", refuse, raising=False)
        monkeypatch.setattr(registry, "native_library", refuse)
    with caplog.at_level(logging.INFO):
        on_gpu, on_cpu = (
            {serving(name, request._replace(device=device)) for name, request in ASKED.items()}
            for device in (GPU, CPU)
        )
    assert on_gpu == ({"torch"} if value == "off" else {"cuda"})
    assert value != "off" or (on_cpu == {"torch"} and not can_compile())
    assert ("KSCOUT_KERNELS=off" in caplog.text) == (value == "off") and not warnings_of(caplog)


def test_the_switch_is_on_or_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSCOUT_KERNELS", "no")
    with pytest.raises(ConfigError, match="KSCOUT_KERNELS is 'no'; set it to on or off"):
        serving("ssim", Request(CPU))


def test_c_serves_a_cpu_inside_the_block_only(caplog: pytest.LogCaptureFixture) -> None:
    request = Request(CPU, n_channels=16)
    before = serving("policy", request)
    with caplog.at_level(logging.INFO), compiled_kernels(enabled=False):
        assert serving("policy", request) == "torch"
    # Nobody is told what was asked for.
    assert not caplog.records or before == "torch"
    assert serving("policy", request) == before


@pytest.mark.parametrize(
    "change",
    [{"n_channels": 24}, {"dtypes": frozenset({torch.float64})}, {"differentiates_images": True}],
)
def test_c_kernels_leave_the_rest_to_torch(change: dict[str, Any]) -> None:
    assert serving("policy", Request(CPU, n_channels=16)._replace(**change)) == "torch"


def test_what_cannot_be_compiled_after_all_is_replaced_with_a_warning(
    gpu: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> str:
        raise KernelUnavailableError("out of registers")

    assert build("unet", UNET, {"cuda": fail, "torch": lambda: "plain"}) == "plain"
    (sentence,) = warnings_of(caplog)
    assert "out of registers" in sentence


def test_16_bit_that_was_asked_for_is_refused_where_no_kernels_serve(gpu: SimpleNamespace) -> None:
    assert has_kernels(UNet().network, GPU)
    gpu.capability = (7, 5)
    forget()
    assert not has_kernels(UNet().network, GPU)
    with pytest.raises(ConfigError, match="no 16-bit kernels"):
        UNet(n_channels=2, n_pools=1).frozen(precision="fp16", n_rows=8, n_cols=8, device="cuda")


def test_16_bit_is_refused_at_a_size_that_kernels_do_not_serve(
    gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Weights stay where they are: there is no GPU that could take them.
    monkeypatch.setattr(UNet, "to", lambda self, _: self)
    monkeypatch.setattr(unet, "Workspace", lambda _: Workspace(GPU))
    view = UNet().frozen(precision="auto", n_rows=96, n_cols=96, device="cuda")
    assert isinstance(view, HalfPrecisionUNet) and view.precision == "fp32"
    words = r"no 16-bit kernels for a U-Net on 96x96 .* precision auto"
    with pytest.raises(ConfigError, match=words):
        UNet().frozen(precision="fp16", n_rows=96, n_cols=96, device="cuda")
