"""Check the links within the built pages: `python .docs/check_links.py [FOLDER]`.

Every relative link must lead to a file, and every anchor to an element with this id. Links to other
sites are not followed, but scripts, styles and pictures of other sites are reported.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

BUILT = Path(__file__).parent / "_build"


class LinkParser(HTMLParser):
    """Collects the links of a page and the ids that links may lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the links and the id of an element."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append((tag, value))
            elif name in ("id", "name") and value:
                self.ids.add(value)


def read_pages(folder: Path) -> dict[Path, LinkParser]:
    """Parse all pages below a folder."""
    pages = {}
    for path in sorted(set(folder.rglob("*.html")) - set((folder / "_static").rglob("*"))):
        pages[path.resolve()] = parser = LinkParser()
        parser.feed(path.read_text(encoding="utf-8"))
    return pages


def find_broken_links(pages: dict[Path, LinkParser]) -> list[str]:
    """Describe every link that leads nowhere."""
    broken = []
    for path, page in pages.items():
        for tag, link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if tag != "a" and parts.scheme != "data":
                    broken.append(f"{path}: {link}: the page needs another site")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.exists():
                broken.append(f"{path}: {link}: there is no such file")
            elif anchor and target in pages and anchor not in pages[target].ids:
                broken.append(f"{path}: {link}: the page has no such anchor")
    return broken


if __name__ == "__main__":
    built_pages = read_pages(Path(sys.argv[1]) if sys.argv[1:] else BUILT)
    broken_links = find_broken_links(built_pages)
    print(*broken_links, f"{len(built_pages)} pages, {len(broken_links)} broken links", sep="\n")
    sys.exit(bool(broken_links) or not built_pages)
