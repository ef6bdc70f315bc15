"""All pages with figures: what differs from the files under results/, and the pages as the files have it."""

from figures import blocks, marks, unmarked
from figures.stored import ROOT


def pages() -> list[str]:
    """README.md, results/README.md, the model card, and every page of the documentation and of the extras."""
    found = [ROOT / "README.md", ROOT / "results" / "README.md", ROOT / "suites/pairs/weights/MODEL_CARD.md"]
    found += sorted((ROOT / "docs" / "pages").rglob("*.md")) + sorted((ROOT / "extras").rglob("*.md"))
    return [path.relative_to(ROOT).as_posix() for path in found]


def check() -> list[str]:
    """A line for each figure, table or statement that is not what its file says, and each number without a mark."""
    known = unmarked.listed()
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in pages()}
    lines = [f"{page}: is not there: take it from {unmarked.LIST.name}" for page in known if page not in texts]
    for page, text in texts.items():
        lines += wrong(page, text) + unmarked.wrong(page, text, known)
    return lines


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
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in pages()}
    known = unmarked.pruned(unmarked.listed(), texts)
    unmarked.write(known)
    return changed + left + [line for page, text in texts.items() for line in unmarked.wrong(page, text, known)]
