"""The package: one version everywhere, and in the wheel what git tracks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import embstore as es
from tests.documents import ROOT

FOLDERS = {
    "embstore": "embstore", "schemas": "embstore/schemas", "cli": "embstore_cli", "explorer": "embstore_explorer",
    "studies": "embstore_studies",
}  # fmt: skip
COMPILED = {".c", ".h", ".pyx"}  # sources of the extension, in the sdist only
BUILD = "from setuptools import setup; setup()"


def test_the_version_is_the_same_everywhere() -> None:
    assert es.__version__ == version("embstore")
    changes = (ROOT / "CHANGELOG.md").read_text()
    released = changes[changes.index("\n## ") :].split()[1]
    assert f"\nversion: {released}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"version = {{{released}}}," in (ROOT / "docs" / "about" / "citation.md").read_text()


def test_the_licence_names_those_of_the_page() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = json.loads((ROOT / "explorer" / "source" / "package-lock.json").read_text())["packages"]
    shipped = {about["license"] for path, about in packages.items() if path and not about.get("dev")}
    assert {"MIT", "ISC"} < shipped <= set(project["license"].split(" AND "))
    assert all((ROOT / name).is_file() for name in project["license-files"])


def set_up(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of setuptools and return what it printed."""
    script = ["setup.py"] if (cwd / "setup.py").exists() else ["-c", BUILD]
    done = subprocess.run([sys.executable, *script, *map(str, arguments)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.mark.slow
def test_the_version_is_that_of_the_tag(tmp_path: Path) -> None:
    """Of the tagged commit, of the sdist made of it, which has no git, of a commit after it, and without git."""
    pytest.importorskip("setuptools_scm", reason="no setuptools-scm: pip install setuptools-scm")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    text = (tmp_path / "pyproject.toml").read_text()  # without packages and extension: nothing is compiled
    start, end = text.index("[tool.setuptools]\n"), text.index("[tool.ruff]")
    (tmp_path / "pyproject.toml").write_text(text[:start] + "[tool.setuptools]\npackages = []\n" + text[end:])
    assert set_up("--version", cwd=tmp_path).stdout.split()[-1] == "0.1.dev0"
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org"]
    commit = [*git, "commit", "-q", "--allow-empty", "-m", "A"]
    for command in ([*git, "init", "-q"], [*git, "add", "."], commit, [*git, "tag", "v7.8.9"]):
        subprocess.run(command, cwd=tmp_path, check=True)
    assert set_up("--version", cwd=tmp_path).stdout.split()[-1] == "7.8.9"
    set_up("-q", "sdist", cwd=tmp_path)
    shutil.unpack_archive(tmp_path / "dist" / "embstore-7.8.9.tar.gz", tmp_path / "unpacked", filter="data")
    assert set_up("--version", cwd=tmp_path / "unpacked" / "embstore-7.8.9").stdout.split()[-1] == "7.8.9"
    subprocess.run(commit, cwd=tmp_path, check=True)
    assert set_up("--version", cwd=tmp_path).stdout.split()[-1].startswith("7.8.10.dev1+g")


@pytest.mark.slow
def test_the_wheel_holds_what_git_tracks(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout of git")
    tracked = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    for name in tracked:
        if name.startswith(
            (*(f"{folder}/" for folder in FOLDERS), "setup.py", "pyproject.toml", "README.md", "LICENSE")
        ):
            (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / "source" / name)
    done = set_up("build_py", "--build-lib", tmp_path / "wheel", cwd=tmp_path / "source")
    assert "is absent from the `packages` configuration" not in done.stderr, done.stderr[:3000]
    expected = {
        "/".join([FOLDERS[folder], rest])
        for folder, _, rest in (name.partition("/") for name in tracked)
        if folder in FOLDERS
        and Path(rest).suffix not in COMPILED
        and not (folder == "explorer" and rest.startswith("source/"))
    }
    assert {
        "embstore/py.typed",
        "embstore/__init__.pyi",
        "embstore_explorer/page/index.html",
        "embstore_explorer/page/THIRD_PARTY_LICENSES.txt",
        "embstore_cli/demo_sentences.txt",
    } < expected
    built = {
        path.relative_to(tmp_path / "wheel").as_posix() for path in (tmp_path / "wheel").rglob("*") if path.is_file()
    }
    assert built == expected
