"""Draw the picture of the service's page in docs/how-to/serve.md, light and dark.

Usage: python lab/page_picture.py docs/images/page.webp

Draws a knee, starts `kscout serve` on it and photographs the page with Chromium: two policies of
the zoo, and four columns taken by hand. The dark picture is page-dark.webp.
"""

import io
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from kscout.data.generate import make_store
from kscout.data.making import MakeSettings

STATE = (
    "slice=3&policies=knee-general-16-column|knee-general-16-fixed&n_initial=16"
    "&n_steps=16&own=55,41,86,75&step=4"
)
WIDTH, HEIGHT = 1280, 1130


def photograph(address: str, path: Path) -> None:
    """Save the page as both schemes show it."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(300_000)
        page.goto(f"{address}/#{STATE}")
        page.wait_for_selector("#stage[aria-busy=false]", state="attached")
        page.locator("#stage .controls output", has_text="step 4 of 16").wait_for()
        for scheme, name in (("light", path), ("dark", path.with_stem(f"{path.stem}-dark"))):
            page.emulate_media(color_scheme=scheme)
            shot = Image.open(io.BytesIO(page.screenshot()))
            shot.convert("RGB").save(name, quality=90, method=6)
        browser.close()


def main(path: Path) -> None:
    """Start the service, photograph its page and end it."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        make_store(store, MakeSettings(kind="knee", volumes=(0, 0, 1), slices=6, size=128))
        words = ["serve", "--reconstructor", "knee-general-unet", "--data", str(store)]
        words += ["--policy", "knee-general-16-column", "--policy", "knee-general-16-fixed"]
        command = [sys.executable, "-m", "kscout", *words]
        service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert service.stdout is not None
            photograph(json.loads(service.stdout.readline())["http"], path)
        finally:
            service.terminate()
            service.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
