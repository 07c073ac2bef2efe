"""Command line > environment > ini > default. Unusable values are refused with their source."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_trainbench.hardware.catalog import Price
from pytest_trainbench.settings import ONLY_INI, OPTIONS, Settings, flag, fraction, gigabytes, read
from pytest_trainbench.store.history import default_folder

ROOT = Path("/project")

DEFAULTS = Settings(
    hw="auto",
    save_baseline=False,
    add=False,
    missing=False,
    stale=False,
    calibrate=False,
    against=None,
    launches=3,
    stored_launches=5,
    confirm=7,
    night_error=1 / 30,
    floor=None,
    fail_on_improvement=False,
    unjudged_share=0.5,
    stale_days=90,
    baseline_dir=ROOT / "baselines",
    devices=None,
    nodes=1,
    node_port=29600,
    node_host="",
    memory_cap=None,
    launch_timeout=600.0,
    run_timeout=None,
    results=None,
    history=default_folder(),
    cost=False,
    price=None,
    task_samples=None,
    report_md=None,
    report_html=None,
    preload="torch._dynamo",
    project="",
    ci=False,
)

GIVEN: dict[str, tuple[str, Any]] = {
    "hw": ("h200", "h200"),
    "save_baseline": ("true", True),
    "add": ("true", True),
    "missing": ("true", True),
    "stale": ("true", True),
    "calibrate": ("true", True),
    "against": ("main~1", "main~1"),
    "launches": ("5", 5),
    "confirm": ("0", 0),
    "night_error": ("1/100", 0.01),
    "floor": ("2%", 0.02),
    "fail_on_improvement": ("true", True),
    "unjudged_share": ("25%", 0.25),
    "stale_days": ("30", 30),
    "baseline_dir": ("/stored", Path("/stored")),
    "devices": ("2", 2),
    "nodes": ("2", 2),
    "node_port": ("29500", 29500),
    "node_host": ("10.0.0.1", "10.0.0.1"),
    "memory_cap": ("32GB", 32.0),
    "launch_timeout": ("90.5", 90.5),
    "run_timeout": ("3600", 3600.0),
    "results": ("/results", Path("/results")),
    "history": ("/history", Path("/history")),
    "cost": ("true", True),
    "price": ("2.5USD", Price(amount=2.5, currency="USD", per="hour", date=None, source="--price")),
    "task_samples": ("2048", 2048),
    "report_md": ("/report.md", Path("/report.md")),
    "report_html": ("/report.html", Path("/report.html")),
}
"""For each option, a text and its parsed value."""


def settings(
    command_line: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    ini: dict[str, str] | None = None,
) -> Settings:
    """Read settings as pytest does: every option is there, as ``None`` or empty if it was not given."""
    nothing = dict.fromkeys(OPTIONS)
    empty = dict.fromkeys([*OPTIONS, *ONLY_INI], "")
    return read({**nothing, **(command_line or {})}, environment or {}, {**empty, **(ini or {})}, ROOT)


def test_nothing_given_gives_the_defaults() -> None:
    assert settings() == DEFAULTS


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"save_baseline": "true"}, "compares two sides of this run with each other: leave out --save-baseline"),
        ({"missing": "true"}, "compares two sides of this run with each other: leave out --missing"),
        ({"stale": "true"}, "compares two sides of this run with each other: leave out --stale"),
        ({"calibrate": "true"}, "compares two sides of this run with each other: leave out --calibrate"),
        ({"launches": "1"}, "needs two launches of each side to measure their noise: use --launches 2"),
    ],
)
def test_against_refuses_options_that_contradict_it(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^--against {sentence}$"):
        settings({"against": "main", **given})


def test_add_needs_save_baseline() -> None:
    with pytest.raises(ValueError, match=r"^--add adds launches to stored baselines: use it with --save-baseline$"):
        settings({"add": "true"})
    assert settings({"add": "true", "save_baseline": "true"}).add


def test_missing_and_stale_exclude_each_other() -> None:
    sentence = "--missing runs cases without a baseline, and --stale runs cases with one: leave one out"
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        settings({"missing": "true", "stale": "true"})


def test_saving_runs_more_launches_than_a_night_by_default() -> None:
    assert settings({"save_baseline": "true"}).launches == 5
    told = settings({"save_baseline": "true"}, {"TRAINBENCH_LAUNCHES": "2"})
    assert (told.launches, told.stored_launches) == (2, 2)


def test_this_file_covers_every_option() -> None:
    assert list(GIVEN) == list(OPTIONS)


def test_every_option_is_on_a_page() -> None:
    root = Path(__file__).parent.parent
    pages = " ".join(path.read_text(encoding="utf-8") for path in (root / "README.md", *(root / "docs").glob("*.md")))
    suite = re.findall(r'"(--[\w-]+)"', (root / "conftest.py").read_text(encoding="utf-8"))
    assert "--grid" in suite
    assert [one for one in (*map(flag, OPTIONS), *suite) if not re.search(rf"{one}(?![\w-])", pages)] == []


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_can_be_given_in_three_places(name: str) -> None:
    text, value = GIVEN[name]
    variable = f"TRAINBENCH_{name.upper()}"
    needed = {"save_baseline": "true"} if name == "add" else {}
    for found in (
        settings({name: text, **needed}),
        settings(needed, environment={variable: text}),
        settings(needed, ini={name: text}),
    ):
        assert getattr(found, name) == value != getattr(DEFAULTS, name)


def test_command_line_wins_over_environment_and_environment_over_ini_file() -> None:
    variable, ini = {"TRAINBENCH_LAUNCHES": "2"}, {"launches": "3"}
    assert settings({"launches": "1"}, variable, ini).launches == 1
    assert settings({}, variable, ini).launches == 2
    assert settings({}, {}, ini).launches == 3


def test_a_flag_on_the_command_line_wins_over_a_false_variable() -> None:
    assert settings({"save_baseline": True}, {"TRAINBENCH_SAVE_BASELINE": "no"}).save_baseline is True


@pytest.mark.parametrize("name", OPTIONS)
def test_an_empty_variable_counts_as_not_given(name: str) -> None:
    text, value = GIVEN[name]
    assert getattr(settings({}, {f"TRAINBENCH_{name.upper()}": ""}, {name: text}), name) == value


TYPED, VARIABLE, INI = {"baseline_dir": "../typed"}, {"TRAINBENCH_BASELINE_DIR": "../set"}, {"baseline_dir": "../ini"}


def test_a_baseline_folder_is_relative_to_where_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert settings().baseline_dir == ROOT / "baselines"
    assert settings(TYPED).baseline_dir == tmp_path / "../typed"
    assert settings({}, VARIABLE).baseline_dir == tmp_path / "../set"
    assert settings({}, {}, INI).baseline_dir == ROOT / "../ini"
    # Of several values, the one that counts decides.
    assert settings(TYPED, VARIABLE, INI).baseline_dir == tmp_path / "../typed"
    assert settings({}, VARIABLE, INI).baseline_dir == tmp_path / "../set"
    assert settings({}, {"TRAINBENCH_BASELINE_DIR": ""}, INI).baseline_dir == ROOT / "../ini"


def test_other_paths_are_relative_to_where_they_were_given_too() -> None:
    assert settings({"results": "out"}, {}, {"report_md": "report.md"}) == dataclasses.replace(
        DEFAULTS, results=Path.cwd() / "out", report_md=ROOT / "report.md"
    )


@pytest.mark.parametrize("name", ["baseline_dir", "results", "history", "report_md", "report_html"])
def test_a_leading_tilde_is_the_users_home_in_every_source(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    variable = f"TRAINBENCH_{name.upper()}"
    for found in (settings({name: "~/x"}), settings({}, {variable: "~/x"}), settings(ini={name: "~/x"})):
        assert getattr(found, name) == Path("/home/me/x")
    assert getattr(settings(ini={name: "x/~"}), name) == ROOT / "x/~"
    with pytest.raises(ValueError, match=f"^{variable}=~no-such-user/x cannot be used: its ~ names no user"):
        settings({}, {variable: "~no-such-user/x"})


def test_a_history_can_be_switched_off() -> None:
    assert settings({"history": "none"}).history is None


COUNT = "it must be a whole number above 0"
WHOLE = "it must be a whole number, 0 or more"
FRACTION = "it must be between 0 and 1, for example 1%, 0.01 or 1/100"
SECONDS = "it must be a number of seconds above 0"
MEMORY = "it must be a number of GB above 0, for example 32GB"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        *(("launches", text, COUNT) for text in ("0", "-1", "1.5", "three", "1e3", "٣")),
        ("devices", "0", COUNT),
        ("stale_days", "0", COUNT),
        *(("confirm", text, WHOLE) for text in ("-1", "some", "1.5", "٣")),
        *(("night_error", text, FRACTION) for text in ("0", "-1", "1/0", "nan", "often")),
        *(("floor", text, FRACTION) for text in ("0%", "100%", "-1%", "%", "inf")),
        *(("unjudged_share", text, FRACTION) for text in ("0", "-1", "most")),
        *(("launch_timeout", text, SECONDS) for text in ("0", "-5", "nan", "inf", "1h")),
        ("run_timeout", "0", SECONDS),
        ("floor", "5", f"{FRACTION}; for 5 percent type 5%"),
        *(("memory_cap", text, MEMORY) for text in ("0GB", "-1", "GB", "32GiB", "inf", "nan", "much")),
        *(
            ("price", text, "it must be an amount above 0 with a currency, per device and hour, for example 2.5USD")
            for text in ("2.5", "USD", "0USD", "2.5USD/h", "-1EUR", "1.2.3USD")
        ),
        *(("save_baseline", text, "it must be true or false") for text in ("maybe", "2", "on")),
    ],
)
def test_an_unusable_value_is_refused_with_its_source(name: str, text: str, why: str) -> None:
    sources: list[tuple[str, dict[str, Any]]] = [
        (flag(name), {"command_line": {name: text}}),
        (f"TRAINBENCH_{name.upper()}", {"environment": {f"TRAINBENCH_{name.upper()}": text}}),
        (f"trainbench_{name} in the ini file", {"ini": {name: text}}),
    ]
    for source, given in sources:
        with pytest.raises(ValueError) as error:
            settings(**given)
        assert str(error.value) == f"{source}={text} cannot be used: {why}"


def test_an_overruled_value_is_not_read() -> None:
    assert settings({"launches": "1"}, {"TRAINBENCH_LAUNCHES": "many"}).launches == 1


@pytest.mark.parametrize("text", ["1%", "1 %", "0.01", "1/100", "1e-2"])
def test_a_fraction_can_be_written_in_five_ways(text: str) -> None:
    assert fraction(text) == 0.01


@pytest.mark.parametrize(
    ("text", "gb"), [("32", 32.0), ("32GB", 32.0), ("32gb", 32.0), ("0.5 GB", 0.5), ("1e-3", 0.001)]
)
def test_gigabytes_can_be_written_with_and_without_a_unit(text: str, gb: float) -> None:
    assert gigabytes(text) == gb


@pytest.mark.parametrize(
    ("text", "means"),
    [("true", True), ("Yes", True), ("1", True), ("FALSE", False), ("no", False), ("0", False)],
)
def test_a_switch_can_be_written_as_true_yes_or_1(text: str, means: bool) -> None:
    assert settings(ini={"save_baseline": text}).save_baseline is means


@pytest.mark.parametrize(
    ("environment", "ci"),
    [
        *(({"CI": text}, True) for text in ("true", "1", "woodpecker")),
        *(({"CI": text}, False) for text in ("", "0", "False")),
        ({}, False),
    ],
)
def test_the_ci_variable_is_detected(environment: dict[str, str], ci: bool) -> None:
    assert settings(environment=environment).ci is ci


def test_optimizers_find_their_modules_imported_unless_the_project_names_others() -> None:
    assert settings().preload == "torch._dynamo"
    assert settings(ini={"preload": "deepspeed"}).preload == "deepspeed"


def test_project_and_preload_come_only_from_the_ini_file() -> None:
    told = settings(
        ini={"preload": "deepspeed fairscale", "project": "speed"}, environment={"TRAINBENCH_PROJECT": "no"}
    )
    assert (told.preload, told.project) == ("deepspeed fairscale", "speed")


def test_a_flag_is_spelled_with_dashes() -> None:
    assert [flag(name) for name in ("hw", "save_baseline")] == ["--hw", "--save-baseline"]
