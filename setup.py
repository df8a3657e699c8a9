"""The packages of the distribution: the folders beside this file, under the names that they are imported by."""

from setuptools import find_packages, setup

FOLDERS = {
    "embstore": "embstore",
    "embstore_cli": "cli",
    "embstore_studies": "studies",
    "embstore_explorer": "explorer",
}

setup(
    packages=[
        "embstore.schemas",
        *(
            name + dot + inner
            for name, folder in FOLDERS.items()
            for dot, inner in [("", ""), *((".", inner) for inner in find_packages(folder))]
        ),
    ],
    package_dir={"embstore.schemas": "schemas", **FOLDERS},
)
