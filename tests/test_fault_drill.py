"""The fault drill in short: every fault in data, a few in ranks, and the drill notices what is lost or left behind."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from ranks import TURN, preload

from benchmarks import fault_drill
from benchmarks.fault_drill import DRILLS, Drill, chosen, drill, page

SHORT = ["rank: exception", "rank: SIGKILL", "rank: NaN", "rank: torn trace", "full temporary folder"]
"""Faults in ranks that take few seconds. tests/test_launch.py has the others."""


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preload()  # its folder is in the system's temporary folder
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(fault_drill, "START_S", 100.0)  # other tests use the cores


@pytest.mark.parametrize("name", [name for name in DRILLS if not name.startswith(("rank:", "fork server"))] + SHORT)
def test_a_fault_is_reported_and_leaves_nothing(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with TURN:
        tally = drill([name], seed=0, folder=tmp_path_factory.mktemp("drill"))[name]
    assert (tally.times, tally.lost) == (1, [])
    assert [one for one in tally.left if not one.startswith("/dev/shm")] == [], "other tests use shared memory"


def test_the_drill_notices_a_lost_fault_and_what_stays(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(folder: Path, chance: random.Random) -> tuple[str, str]:
        (Path(tempfile.gettempdir()) / "forgotten").write_text("x")
        return "ok", "nothing happened"

    monkeypatch.setitem(DRILLS, "careless", Drill(run=careless, expected="crash: .*"))
    tally = drill(["careless"], seed=0, folder=tmp_path_factory.mktemp("drill"))["careless"]
    assert tally.lost == ["ok: nothing happened"]
    assert any(one.endswith("/forgotten") for one in tally.left)
    assert "| careless" in page({"careless": tally}, seed=0)


def test_the_same_seed_plants_the_same_faults() -> None:
    assert chosen(100, seed=3) == chosen(100, seed=3) != chosen(100, seed=4)
    once = chosen(len(DRILLS), seed=3)
    assert sorted(once) == sorted(DRILLS)
