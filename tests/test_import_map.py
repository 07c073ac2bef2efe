"""The import map of a package shows its rooms (folders and top-level modules), arrows (imports) and levels, and
finds circular imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.import_map import HERE, levels, modules, of_rooms, page

FILES = {
    "__init__.py": "from shop.store.shelf import Shelf\n",
    "store/__init__.py": "",
    "store/shelf.py": "from shop.words import Word\n",
    "store/box.py": "import json\nfrom shop.store import shelf\ndef late():\n    import shop.words\n",
    "words.py": "",
    "till.py": "from shop import store\nfrom shop.store.box import Box\n",
}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "shop"


def test_folders_and_top_level_modules_are_rooms(shop: Path) -> None:
    assert of_rooms(modules(shop)) == {"": {"store"}, "store": {"words"}, "till": {"store"}, "words": set()}


def test_the_map_counts_arrows_and_levels(shop: Path) -> None:
    assert page(shop).splitlines() == [
        "6 modules, 6 arrows between them, on 4 levels",
        "4 rooms, 3 arrows between them, on 3 levels",
        "",
        " 3  shop    1  store",
        " 3  till    1  store",
        " 2  store   3  words",
        " 1  words   1",
    ]


def test_a_circle_of_imports_is_named(shop: Path) -> None:
    (shop / "words.py").write_text("from shop.store.box import Box\n")
    with pytest.raises(ValueError, match=r"a circle of imports: .*words.*"):
        levels(of_rooms(modules(shop)))


def test_the_plugin_has_a_map() -> None:
    assert levels(of_rooms(modules(HERE)))["schema"] == 1
