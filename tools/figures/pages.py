"""All pages with figures: what differs from the files under results/, and the pages as the files have it."""

from figures import blocks, marks
from figures.stored import ROOT


def pages() -> list[str]:
    """README.md, results/README.md, and every page of the documentation and of the extras, from the root."""
    found = [ROOT / "README.md", ROOT / "results" / "README.md"]
    found += sorted((ROOT / "docs" / "pages").rglob("*.md")) + sorted((ROOT / "extras").rglob("*.md"))
    return [path.relative_to(ROOT).as_posix() for path in found]


def check() -> list[str]:
    """A line for each figure, table or statement that is not what its file says."""
    return [line for page in pages() for line in wrong(page, (ROOT / page).read_text(encoding="utf-8"))]


def wrong(page: str, text: str) -> list[str]:
    """What is wrong on one page with this text."""
    of_tables = [f"{page}:{at}: {shown} should be {right}" for at, shown, right in blocks.wrong(text)]
    return of_tables + [str(one) for one in marks.wrong(page, text)]


def rewrite() -> list[str]:
    """Write each page as the files have it, and say which changed, and what still is wrong: statements, lost marks."""
    changed, left = [], []
    for page in pages():
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        new = marks.rewritten(blocks.rewritten(text))
        if new != text:
            path.write_text(new, encoding="utf-8")
            changed.append(f"{page} is written again")
        left += wrong(page, new)
    return changed + left
