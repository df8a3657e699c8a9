"""The report of a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from embstore.errors import InvalidValueError, NonFiniteError, check_choice, check_whole
from embstore.store import Store
from embstore_explorer.reports.page import page
from embstore_explorer.reports.section import Section, Source
from embstore_explorer.reports.sections import SECTIONS
from embstore_explorer.stores import write_file

MAX_SEED = 2**63 - 1


@dataclass(frozen=True, eq=False)
class Report:
    """A report: its `sections`, each with its `finding`, `method`, `call`, `frames` and `caveats`, and the `html`."""

    sections: tuple[Section, ...]
    html: str

    def save(self, path: str | Path) -> None:
        """Write the page to a .html file. Raises InvalidValueError, OSError."""
        if Path(path).suffix not in (".html", ".htm"):
            raise InvalidValueError(f"report {path} has no known suffix: choose .html")
        write_file(Path(path), self.html.encode())

    def __repr__(self) -> str:
        return "\n".join(f"{each.title}: {each.problem or each.finding}" for each in self.sections)


def report(data: Store, *, sections: str | Sequence[str] | None = None, seed: int = 0) -> Report:
    """Describe a store and what its vectors show, as one HTML page that needs no network.

    `sections`: some of contents, geometry, words, senses, similarity and probes; all by default. Each has its
    method, numbers, limits and the Python that computes the same; one that cannot be computed says why. Stores of more
    than 250,000 rows are sampled, with `seed`; the same store and seed give the same bytes. Save it with
    `Report.save("report.html")`.

    Example::

        embstore_explorer.report(store, sections=["contents", "geometry"]).save("report.html")

    Raises InvalidValueError for an unknown section, MissingPackageError without matplotlib (the extra `plots`).
    """
    check_whole("seed", seed, 0, MAX_SEED)
    names = (sections,) if isinstance(sections, str) else tuple(SECTIONS if sections is None else sections)
    for name in names:
        check_choice("section", name, SECTIONS)
    if not names:
        raise InvalidValueError(f"no section is chosen: name some of {', '.join(SECTIONS)}")
    source, made = Source(data, seed), []
    chosen = {name: section for name, section in SECTIONS.items() if name in names}
    for name, (title, make) in chosen.items():
        try:
            made.append(make(source))
        except (InvalidValueError, NonFiniteError) as error:
            made.append(Section(name, title, problem=str(error)))
    return Report(tuple(made), page(data, made, seed=seed))
