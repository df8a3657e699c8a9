"""The package: one version everywhere, and in the wheel what git tracks."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import embstore as es
from tests.documents import ROOT

FOLDERS = {"embstore": "embstore", "schemas": "embstore/schemas", "cli": "embstore_cli"}
COMPILED = {".c", ".h", ".pyx"}  # sources of the extension, in the sdist only
BUILD = "from setuptools import setup; setup()"


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert es.__version__ == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"version = {{{version}}}," in (ROOT / "docs" / "about" / "citation.md").read_text()
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert changes[changes.index("\n## ") :].split()[1] == version


@pytest.mark.slow
def test_the_wheel_holds_what_git_tracks(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout of git")
    tracked = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    for name in tracked:
        if name.startswith((*(f"{folder}/" for folder in FOLDERS), "pyproject.toml", "README.md", "LICENSE")):
            (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / "source" / name)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, "build_py", "--build-lib", tmp_path / "wheel"],
        cwd=tmp_path / "source",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "is absent from the `packages` configuration" not in done.stderr, done.stderr[:3000]
    expected = {
        "/".join([FOLDERS[folder], rest])
        for folder, _, rest in (name.partition("/") for name in tracked)
        if folder in FOLDERS and Path(rest).suffix not in COMPILED
    }
    assert {
        "embstore/py.typed",
        "embstore/__init__.pyi",
        "embstore/explorer/page/index.html",
        "embstore/explorer/page/THIRD_PARTY_LICENSES.txt",
        "embstore_cli/demo_sentences.txt",
    } < expected
    built = {
        path.relative_to(tmp_path / "wheel").as_posix() for path in (tmp_path / "wheel").rglob("*") if path.is_file()
    }
    assert built == expected
