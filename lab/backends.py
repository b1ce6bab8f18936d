"""The U-Net on a CPU: compiled kernels of kscout and other ways to run it.

    python lab/backends.py --threads 2

Prints and records the median time of 16 images of 128 x 128 pixels. Packages that are not
installed (openvino, onnxruntime) are left out.
"""

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from commands import parser
from results import record, result

from kscout import reconstruction
from kscout.provenance import commit

N_IMAGES, SIZE = 16, 128


def median_ms(run: Callable[[], object], n_times: int) -> float:
    """Return the median time of a call after two calls that are not counted."""
    times = []
    for number in range(n_times + 2):
        begin = time.perf_counter()
        run()
        if number > 1:
            times.append(1e3 * (time.perf_counter() - begin))
    return median(times)


def torch_ways(images: torch.Tensor, n_times: int) -> dict[str, float]:
    """Time the network in PyTorch."""
    network = reconstruction.load("knee-unet").network.eval()
    times = {"torch, default layout": median_ms(lambda: network(images), n_times)}
    last = images.to(memory_format=torch.channels_last)
    network = network.to(memory_format=torch.channels_last)
    times["torch, channels last"] = median_ms(lambda: network(last), n_times)
    compiled = torch.compile(network)
    times["torch.compile"] = median_ms(lambda: compiled(last), n_times)
    return times


def frozen_ms(images: torch.Tensor, n_times: int) -> float:
    """Time the network as kscout runs it."""
    sizes = {"n_rows": SIZE, "n_cols": SIZE}
    model = reconstruction.load("knee-unet").frozen(precision="fp32", device="cpu", **sizes)
    return median_ms(lambda: model.network(images), n_times)


def exported_ways(images: torch.Tensor, n_threads: int, n_times: int) -> dict[str, float]:
    """Time the network in other libraries."""
    network, times = reconstruction.load("knee-unet").network.eval(), {}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "unet.onnx"
        torch.onnx.export(network, (images,), path, dynamo=False, input_names=["images"])
        given = images.numpy()
        if importlib.util.find_spec("onnxruntime"):
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = n_threads
            session = onnxruntime.InferenceSession(path, options)
            times["ONNX Runtime"] = median_ms(lambda: session.run(None, {"images": given}), n_times)
        if importlib.util.find_spec("openvino"):
            import openvino

            model = openvino.compile_model(path, "CPU", {"INFERENCE_NUM_THREADS": n_threads})
            name = f"OpenVINO {'.'.join(openvino.__version__.split('.')[:2])}"
            times[name] = median_ms(lambda: model(given), n_times)
    return times


@torch.no_grad()
def main() -> None:
    """Time every way, and record."""
    options = parser(__doc__)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--times", type=int, default=20)
    options.add_argument("--only-frozen", action="store_true", help="print the time of kscout")
    asked = options.parse_args()
    torch.set_num_threads(asked.threads)
    images = torch.randn(N_IMAGES, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    if asked.only_frozen:
        print(frozen_ms(images, asked.times))
        return
    again = [sys.executable, __file__, "--only-frozen", "--threads", str(asked.threads)]
    plain = {**os.environ, "KSCOUT_KERNELS": "off"}
    without = subprocess.run(again, env=plain, check=True, capture_output=True, text=True).stdout
    times = {"kernels": frozen_ms(images, asked.times), "without kernels": float(without)}
    times |= torch_ways(images, asked.times)
    times |= exported_ways(images, asked.threads, asked.times)
    common = {"experiment": "unet-backends", "reconstruction": "knee-unet", "n_cols": SIZE}
    common |= {"device": f"{asked.threads} CPU threads", "commit": commit()}
    common |= {"metric": "median_ms", "command": "python lab/backends.py"}
    record([result(**common, method=name, value=value) for name, value in times.items()])
    for name, value in times.items():
        print(f"{name}: {value:.0f} ms")


if __name__ == "__main__":
    main()
