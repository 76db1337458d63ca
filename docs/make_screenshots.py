"""Make the pictures of the report page in docs/images; needs chromium and playwright.

Run: `python docs/make_screenshots.py`
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import corten
from corten.report.page import write_report

IMAGES = Path(__file__).parent / "images"
MOST_BYTES = 350_000
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pages(folder: Path) -> dict[str, Path]:
    """The demo with an audit, and a tensor of the size of the paper's TEC data."""
    demo = corten.simulate.tec_like((32, 48, 48), seed=0).to_dataset()["tec"]
    completer = corten.ConformalCompleter(completion="smooth", calibration="gaps", propensity="bernoulli")
    fitted = completer.fit(demo)
    tec = corten.simulate.tec_like((50, 115, 96), seed=1).to_dataset()["tec"]
    large = completer.fit(tec).intervals(0.9)
    return {
        "report": write_report(fitted.intervals(0.9), folder / "demo.html", audit=fitted.audit(rounds=4)),
        "report-tec": write_report(large, folder / "tec.html"),
    }


def main() -> None:
    """Write both pictures, the top of each page at desktop width."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name, path in pages(Path(folder)).items():
            page = browser.new_page(viewport={"width": 1160, "height": 900}, color_scheme="light")
            page.goto(path.as_uri())
            page.locator("#panels canvas").first.wait_for()
            page.wait_for_timeout(500)
            ready = page.evaluate("document.documentElement.dataset.ready")
            slider = page.locator("#slider-2")
            slider.fill(str(int(slider.get_attribute("max") or 0) * 5 // 6))
            slider.blur()
            page.wait_for_timeout(300)
            bottom = page.evaluate("document.getElementById('series-card').getBoundingClientRect().bottom + 20")
            target = IMAGES / f"{name}.png"
            page.screenshot(path=target, full_page=True, clip={"x": 0, "y": 0, "width": 1160, "height": bottom})
            size = target.stat().st_size
            print(f"{target.name}: {size / 1000:.0f} kB, page {path.stat().st_size / 1e6:.2f} MB, ready in {ready} ms")
            if size > MOST_BYTES:
                raise SystemExit(f"{target} has {size} bytes: more than {MOST_BYTES}")
        browser.close()


if __name__ == "__main__":
    main()
