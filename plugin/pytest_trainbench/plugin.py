"""The plugin's options, fixtures and hooks for pytest."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_trainbench import hookspecs, settings
from pytest_trainbench.archive import check_places
from pytest_trainbench.hardware.resolve import Hardware, HardwareNotFound, kind_of
from pytest_trainbench.judge.outcome import OUTCOMES, Verdict
from pytest_trainbench.judge.validity import LOSS_STEPS
from pytest_trainbench.project import rootdir
from pytest_trainbench.report import header, markdown, terminal
from pytest_trainbench.report.plain import plain
from pytest_trainbench.report.rows import Row
from pytest_trainbench.schema.case import Case, builder_path
from pytest_trainbench.schema.files import write
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.metrics import METRICS, Gates, gates
from pytest_trainbench.schema.plan import Plan
from pytest_trainbench.schema.record import Record
from pytest_trainbench.session import ONLY_ASKED, SESSION, Session
from pytest_trainbench.store.baseline import from_here

FILES = ("--results", "--report-md", "--report-html", "--junit-xml", "--junitxml")
"""Options with a value that a reported command leaves out. A path in a CI job may not exist on another machine."""

STORING = ("--save-baseline", "--missing", "--stale")
"""Options without a value that control which cases run and are stored. A reported command leaves them out."""

NIGHTLY = ("--launches", "--confirm", "--run-timeout")
"""Options with a value that fit a nightly run, not a baseline. A baseline needs its own default number of launches, and
all of these launches."""

ALONE = "training benchmarks disturb each other if they run in parallel: turn pytest-xdist off with -n 0"
"""Why a case fails under pytest-xdist."""

UNSEEN = (
    "make bench an argument of the test or of a fixture: getfixturevalue('bench') comes after the checks of collection"
)
"""Why a test fails that requests ``bench`` dynamically, after collection. The plugin has not resolved the hardware for
the test by then, and the test has no share of the run's error budget."""

NEVER_CALLED = "the test passed without a call of bench, so nothing was measured"
"""Why a row is skipped whose test passed. Without it, the report would not name the test."""

FAILED = pytest.fail.Exception

HAS_BASELINE = "it has a baseline (--missing)"
"""Why ``--missing`` skips a row."""

OF_THIS_CODE = "its baseline was made by the current code, or it has no baseline (--stale)"
"""Why ``--stale`` skips a row that is not stale, but has the same label as a stale row."""


def device_kind(config: pytest.Config) -> str:
    """The kind of device that this session's cases use: ``cuda``, ``cpu``, …

    Under ``--collect-only`` a named family needs no device, so a laptop can list the cases of an A100.
    """
    session = config.stash[SESSION]
    if config.option.collectonly and session.settings.hw != "auto":
        # The catalog may lack the name of a device that this machine has.
        with contextlib.suppress(HardwareNotFound):
            return kind_of(session.settings.hw)
    return session.hardware.kind


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("trainbench", "training regression benchmarks")
    for name, option in settings.OPTIONS.items():
        how: dict[str, Any] = {"action": "store_true"} if option.default is False else {"metavar": option.metavar}
        group.addoption(settings.flag(name), dest=f"trainbench_{name}", default=None, help=option.help, **how)
        parser.addini(f"trainbench_{name}", f"default of {settings.flag(name)}", default="")
    for name, help in settings.ONLY_INI.items():
        parser.addini(f"trainbench_{name}", help, default="")


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Stop the run if pytest took the wrong folder for the root.

    This happens before pytest imports a conftest of the wrong project, or a conftest of the right project without the
    ``pythonpath`` of its ini file.
    """
    known, folder = early_config.known_args_namespace, early_config.invocation_params.dir
    if known.inifilename is not None:
        return
    added = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    problem = rootdir.misled(
        [*added, *map(str, early_config.invocation_params.args)],
        flags=[settings.flag(name) for name, option in settings.OPTIONS.items() if option.metavar is not None],
        paths=known.file_or_dir,
        folder=folder,
        found=rootdir.Root(path=early_config.rootpath, ini=early_config.inipath),
        given=Path(os.path.normpath(folder / os.path.expandvars(known.rootdir))) if known.rootdir else None,
    )
    if problem:
        raise pytest.UsageError(problem)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "mesh(**degrees): device mesh of a case, for example mesh(dp=2, tp=2)")
    config.addinivalue_line(
        "markers",
        "gate(metric, floor=, tolerance=): limits of one metric of a case, as fractions. A change below floor is no"
        " regression. A row that cannot detect a change as large as tolerance is noisy."
        " gate('kernels', generated=False) judges the kernels of a compiled step",
    )
    try:
        options = settings.read(
            {name: config.getoption(f"trainbench_{name}") for name in settings.OPTIONS},
            os.environ,
            {name: config.getini(f"trainbench_{name}") for name in [*settings.OPTIONS, *settings.ONLY_INI]},
            config.rootpath,
        )
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[SESSION] = Session(config, options)
    # Check what the command line names before collection. What the ini file or the environment names is checked only
    # when a case is collected, because the project's other tests run without it.
    if config.getoption("trainbench_against") is not None:
        _ = config.stash[SESSION].other
    if config.getoption("trainbench_hw") is not None and options.hw != "auto":
        device_kind(config)
    if config.pluginmanager.hasplugin("benchmark"):
        from pytest_trainbench import pytest_benchmark_bridge

        config.pluginmanager.register(pytest_benchmark_bridge, "trainbench-benchmark-bridge")


@pytest.hookimpl(trylast=True)  # after other options deselected tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With ``--stale``, keep only the rows whose baselines are stale. A row is found by the label in its baseline."""
    session = config.stash[SESSION]
    if not session.settings.stale or not any(map(is_case, items)):
        return
    labels = set(session.other_code.labels.values())
    chosen = {item: is_case(item) and _label(item) in labels for item in items}
    session.spared = list(chosen.values()).count(False)
    config.hook.pytest_deselected(items=[item for item in items if not chosen[item]])
    items[:] = [item for item in items if chosen[item]]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start to import the heavy libraries in the background, while pytest still prints."""
    ours = session.config.stash[SESSION]
    ours.cases = max(1, sum(map(is_case, session.items)))
    option = session.config.option
    listed = option.collectonly or option.showfixtures or option.show_fixtures_per_test
    nothing_starts = listed or _is_worker(session.config)
    if nothing_starts or not any(map(is_case, session.items)):
        return
    _ = ours.hardware, ours.other
    try:
        check_places(ours.settings, ours.hardware.id)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        return  # pytest stops the run and reports the collection errors
    ours.begin()
    ours.unfinished = {item.nodeid for item in session.items if is_case(item)}


def pytest_unconfigure(config: pytest.Config) -> None:
    if ours := config.stash.get(SESSION, None):
        ours.until_end.close()


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    session = config.stash[SESSION]
    if not any(map(is_case, items)):
        return ["trainbench: none of these rows is stale (--stale)"] if session.spared else []
    labels = [_label(item) for item in items if is_case(item)]
    lines = [] if config.option.collectonly else [session.header(), session.hidden, session.length(labels)]
    if session.settings.against is None:
        with contextlib.suppress(pytest.UsageError):  # listing rows needs no device
            lines.append(terminal.few_launches(session.baselines, wanted=settings.STORED_LAUNCHES))
            lines.append(str(session.other_code))
            lines += [f"  {line}" for line in session.other_code.lines() if config.option.collectonly]
    return [plain(f"trainbench: {line}") for line in lines if line]


@pytest.fixture(scope="session")
def hardware(request: pytest.FixtureRequest) -> Hardware:
    """The :class:`pytest_trainbench.hardware.resolve.Hardware` that this session runs on."""
    return request.config.stash[SESSION].hardware


@pytest.fixture
def mesh(request: pytest.FixtureRequest) -> MeshShape:
    """The shape of this case's device mesh.

    The shape comes from an indirect parameter (a ``MeshShape``, ``"dp2-tp2"`` or ``{"dp": 2}``), else from
    ``@pytest.mark.mesh(dp=2)``. The default is data-parallel over all devices (2 ranks on a CPU). The test is skipped
    if the session has fewer devices than the mesh needs.
    """
    session = request.config.stash[SESSION]
    marker = request.node.get_closest_marker("mesh")
    wanted = 2 if session.hardware.kind == "cpu" else session.available
    if hasattr(request, "param"):
        wanted = request.param
    elif marker is not None:
        wanted = marker.kwargs
    try:
        if marker is not None and (marker.args or not marker.kwargs):
            raise ValueError("the mesh marker takes degrees by name: @pytest.mark.mesh(dp=2, tp=2)")
        shape = MeshShape.of(wanted)
    except (TypeError, ValueError) as error:
        raise FAILED(str(error), pytrace=False) from None
    if shape.world_size > session.available:
        pytest.skip(_too_few(session, shape.world_size))
    try:
        shape.nodes(session.devices_a_node)
    except ValueError as error:
        pytest.skip(str(error))
    return shape


@pytest.fixture
def _step_times() -> Callable[[list[float]], None]:
    """Receives step times in seconds, besides the records. The bridge to pytest-benchmark replaces this fixture."""
    return lambda _: None


@pytest.fixture
def bench(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    record_testsuite_property: Callable[[str, object], None],
    _step_times: Callable[[list[float]], None],
) -> Callable[..., Record]:
    """Measure one training step and compare it with its baseline.

    ``bench(builder, mesh=mesh, **params)`` starts ``mesh.world_size`` processes. Each process calls
    ``builder(device_mesh, **params)``, which returns a :class:`pytest_trainbench.Step`. The test fails on a regression
    and on an invalid measurement. The function takes these keywords besides the builder's own:

    * ``version``: raise it when the builder does other work under the same parameters.
    * ``plan``: a :class:`pytest_trainbench.Plan`.
    * ``reference``: parameters with which the builder trains the same model unsharded on one rank. The losses of each
      launch are then compared with this reference, step by step.
    * ``loss_tolerance``: the largest allowed difference of a loss, as a fraction of the total fall of the reference's
      loss.
    * ``loss_steps``: the first and the last step whose losses are compared.
    """
    session = request.config.stash[SESSION]
    if not is_case(request.node):
        pytest.fail(UNSEEN, pytrace=False)
    session.record_property = record_testsuite_property

    def run(
        builder: str | Callable[..., Any],
        *,
        mesh: MeshShape | str,
        version: int = 1,
        plan: Plan | None = None,
        reference: dict[str, Any] | None = None,
        loss_tolerance: float = 0.05,
        loss_steps: tuple[int, int] = LOSS_STEPS,
        **params: Any,
    ) -> Record:
        from pytest_trainbench.calibrate import calibrate
        from pytest_trainbench.launch.launcher import NO_SPACE
        from pytest_trainbench.runner import Reference, Request

        try:
            case = Case(
                builder=builder_path(builder),
                mesh=MeshShape.of(mesh),
                params=params,
                version=version,
                memory_cap_gb=session.settings.memory_cap,
            )
            if session.asked is not None:
                session.asked(_label(request.node), case)
                pytest.skip(ONLY_ASKED)
            runner = session.runner(tmp_path_factory.mktemp)
            if session.settings.missing and runner.is_stored(case):
                pytest.skip(HAS_BASELINE)
            if session.settings.stale and case.id not in session.other_code:
                pytest.skip(OF_THIS_CODE)
            asked = Request(
                case=case,
                label=_label(request.node),
                plan=plan or Plan(),
                reference=None
                if reference is None
                else Reference(params=reference, loss_tolerance=loss_tolerance, loss_steps=loss_steps),
                gates=_gates(request.node),
            )
            # A second test of the same case with other gates is refused, so the first gates stay.
            session.archive.gates.setdefault(case.id, asked.gates)
            began = time.monotonic()
            if session.settings.calibrate:
                row = calibrate(runner, asked)
            else:
                row = runner.row(asked, accept=_accept(request.node))
        except ValueError as error:
            row = _unmeasured(request.node, "invalid", str(error))
            raise FAILED(plain(terminal.failure(row)), pytrace=False) from None
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            row = _unmeasured(request.node, "crash", NO_SPACE.format(error.filename or tempfile.gettempdir()))
            raise FAILED(plain(terminal.failure(row)), pytrace=False) from None
        record = row.record
        assert record is not None
        if row.verdict.fails(ci=session.settings.ci, on_improvement=session.settings.fail_on_improvement):
            since = session.archive.turned(record, runner.now.environment, outcome=row.verdict.outcome)
            row = dataclasses.replace(row, fails=True, turned=since)
        if row.same_as == row.label and all(one.label != row.label for one in session.rows):
            row = dataclasses.replace(row, same_as="")  # the test runs again
        if not row.same_as:
            try:
                # First: the report must not show a row that could not be stored.
                session.archive.keep(row, record, took_s=time.monotonic() - began)
            except OSError as error:  # for example a full disk; the old baseline is still there
                why = f"its baseline cannot be written to {session.settings.baseline_dir} ({error.strerror})"
                row = _unmeasured(request.node, "crash", why)
                raise FAILED(plain(terminal.failure(row)), pytrace=False) from None
        session.rows.append(row)
        request.node.user_properties.append(("trainbench_outcome", row.verdict.outcome))
        request.node.user_properties.append(("trainbench_judged", row.verdict.judged))
        for name in METRICS:
            if (value := record.figure(name)) is not None:
                # Whole numbers in full: counts of bytes are exact.
                text = f"{value:.0f}" if float(value).is_integer() else f"{value:.6g}"
                request.node.user_properties.append((name, text))
        if record.outcome == "ok":
            _step_times([ms / 1000 for launch in record.launches for ms in launch.steady_ms])
        if row.fails:
            pytest.fail(plain(terminal.failure(row)), pytrace=False)
        return record

    return run


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a case under pytest-xdist, before a marker or a fixture can skip it.

    A case that a process of pytest-xdist skips is in no report, so a run of only such cases would be green.
    """
    if is_case(item) and _is_worker(item.config):
        pytest.fail(ALONE, pytrace=False)
    if is_case(item):
        _forget(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add a row to the report for a case that is skipped, or that fails before its measurement.

    ``pytest.skip``, a marker or a fixture can skip a case.
    """
    report = yield
    if not is_case(item) or _is_worker(item.config):
        return report
    if call.when == "teardown":
        item.config.stash[SESSION].unfinished.discard(item.nodeid)
    if (
        call.when == "call"
        and report.passed
        and not any(name == "trainbench_outcome" for name, _ in item.user_properties)
    ):
        verdict = Verdict(outcome="skipped", reason=NEVER_CALLED)
        item.config.stash[SESSION].rows.append(Row(label=_label(item), verdict=verdict))
    if call.excinfo is None:
        return report
    if call.excinfo.errisinstance(pytest.skip.Exception):
        verdict = Verdict(outcome="skipped", reason=str(call.excinfo.value))
        item.config.stash[SESSION].rows.append(Row(label=_label(item), verdict=verdict))
    refused = call.excinfo.errisinstance(FAILED)
    if report.failed:
        words = f"{'' if refused else f'{call.excinfo.typename}: '}{call.excinfo.value}".partition("\n")[0]
        if not any(name == "trainbench_outcome" for name, _ in item.user_properties):
            # The case was never measured. Without this row, the report of a red run would be green.
            _unmeasured(item, "invalid" if refused else "crash", words)
        else:
            _disowned(item, words)
        report.user_properties = list(item.user_properties)
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None and refused:
        # pytest repeats this message in its short summary. Where CI is set, it repeats all of it with the traceback.
        crash.message = crash.message.partition("\n")[0]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    ours = session.config.stash.get(SESSION, None)
    if ours is not None and ours.spared and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK  # all baselines are up to date
    if ours is None or not (ours.rows or ours.unfinished):
        return
    if ours.settings.ci and session.exitstatus == 0 and _all_skipped(ours.rows):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED  # nobody reads skips in CI: an empty run must fail
    if ours.unjudged_most is not None and session.exitstatus == 0 and terminal.too_blind(ours.rows, ours.unjudged_most):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if judged := terminal.census(ours.rows, most=ours.unjudged_most):
        ours.record_property("trainbench_judged", judged)
    _ = ours.archive.trend  # computed even without a report, because the history stores reported drifts
    if ours.settings.report_md is not None:
        top = f"{header.where(ours.facts())} {ours.header()}"
        text = markdown.report(
            ours.rows, top, ours.tables, ours.archive.trend, ours.cut_off, unjudged_most=ours.unjudged_most
        )
        _write(ours, ours.settings.report_md, "a", text)
    if ours.settings.report_html is not None:
        try:
            text = ours.page()
        except Exception as error:  # a suite's chart must not cost the report of a night
            ours.archive.trend.append(f"report: the web page could not be made ({type(error).__name__}: {error})")
        else:
            if _write(ours, ours.settings.report_html, "w", text):
                ours.archive.trend.append(f"page: {from_here(ours.settings.report_html)}")


def _append(path: Path, text: str) -> None:
    """Append the whole text or nothing. Raises ``OSError`` if the file cannot be written."""
    with path.open("ab", buffering=0) as file:
        before = path.stat().st_size
        data = text.encode()
        try:
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            if path.is_file():
                file.truncate(before)
            raise


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ours = terminalreporter.config.stash.get(SESSION, None)
    if ours is None or not (ours.rows or ours.unfinished):
        return
    how = {OUTCOMES[row.verdict.outcome] for row in ours.rows}
    red = any(row.fails for row in ours.rows)
    if ours.unjudged_most is not None:
        red |= terminal.too_blind(ours.rows, ours.unjudged_most)
    all_well = (
        how == {"passes"} and not ours.unfinished and not any(line.startswith("drift") for line in ours.archive.trend)
    )
    title = f"trainbench: {terminal.counts(ours.rows, ours.cut_off)}"
    terminalreporter.section(title, red=red, yellow=not red and not all_well)
    if not ours.rows:
        return
    if judged := terminal.census(ours.rows, most=ours.unjudged_most):
        terminalreporter.write_line(judged)
        terminalreporter.write_line("")
    terminalreporter.write_line(plain(terminal.summary(ours.rows)))
    for line in ours.archive.trend:
        terminalreporter.write_line(plain(line))
    if ours.settings.ci and _all_skipped(ours.rows):
        terminalreporter.write_line("every row was skipped, so nothing was measured: where CI is set, the run fails")
    for title, table in ours.tables.items():
        terminalreporter.write_line("")
        terminalreporter.write_line(plain(terminal.derived(title, table, "simple")))
    if ours.archive.saves:
        terminalreporter.write_line("")
        terminalreporter.write_line(plain(terminal.saved(ours.archive.saves, wanted=settings.STORED_LAUNCHES)))


def _write(ours: Session, path: Path, mode: str, text: str) -> bool:
    """Whether the report is written. If not, the terminal says so, and still shows the report."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        (_append if mode == "a" else write)(path, text)
    except OSError as error:  # for example a full disk
        ours.archive.trend.append(f"report: {path} cannot be written ({error.strerror})")
        return False
    return True


def _unmeasured(item: pytest.Item, outcome: str, reason: str) -> Row:
    """Add the row of a case that failed before it was measured to the report and to the JUnit properties."""
    row = Row(label=_label(item), verdict=Verdict(outcome=outcome, reason=reason), fails=True)
    item.config.stash[SESSION].rows.append(row)
    item.user_properties.append(("trainbench_outcome", outcome))
    return row


def _disowned(item: pytest.Item, reason: str) -> None:
    """Make the last row of a test invalid if the row passed and the test failed.

    The table must not be green if the run is red.
    """
    session = item.config.stash[SESSION]
    at = next(at for at in reversed(range(len(session.rows))) if session.rows[at].label == _label(item))
    row = session.rows[at]
    if row.fails:
        return
    stored = "; its baseline was stored before that" if row.verdict.outcome == "saved" else ""
    verdict = Verdict(outcome="invalid", reason=f"its test failed after it was measured: {reason}{stored}")
    session.rows[at] = dataclasses.replace(row, verdict=verdict, fails=True, accept="")
    if session.archive.log is not None and row.record is not None and not row.same_as:
        session.archive.log.disowned(row.record.case.id)
    said = {"trainbench_outcome": verdict.outcome, "trainbench_judged": verdict.judged}
    item.user_properties[:] = [(name, said.get(name, value)) for name, value in item.user_properties]


def _too_few(session: Session, needed: int) -> str:
    if session.hardware.kind == "cpu" and session.settings.nodes == 1:  # ranks share a CPU, so it may have more
        return f"needs {needed} ranks, and this CPU gets {session.available}: --devices {needed} starts them"
    return f"needs {needed} devices, has {session.available}"


def _forget(item: pytest.Item) -> None:
    """Take back the rows and the JUnit properties of the first attempt, if a plugin runs a test again."""
    session = item.config.stash[SESSION]
    session.rows_before.setdefault(item.nodeid, len(session.rows))
    before = session.rows_before[item.nodeid]
    session.rows[before:] = [row for row in session.rows[before:] if row.label != _label(item)]
    kept = [(name, value) for name, value in item.user_properties if name not in ("trainbench_outcome", *METRICS)]
    item.user_properties[:] = kept


def _is_worker(config: pytest.Config) -> bool:
    """Whether this is one of pytest-xdist's processes."""
    return hasattr(config, "workerinput")


def _all_skipped(rows: list[Row]) -> bool:
    """Whether all rows were skipped, and not because ``--missing`` or ``--stale`` found nothing to do."""
    reasons = {row.verdict.reason if row.verdict.outcome == "skipped" else None for row in rows}
    return reasons.isdisjoint({None, HAS_BASELINE, OF_THIS_CODE})


def is_case(item: pytest.Item) -> bool:
    """Whether a test is a case: it requests ``bench``."""
    return "bench" in getattr(item, "fixturenames", ())


def _label(item: pytest.Item) -> str:
    return item.name.removeprefix("test_")


def _gates(item: pytest.Item) -> Gates:
    """The gates that the test's ``gate`` markers set. The closest marker of a metric wins."""
    asked: dict[str, Mapping[str, object]] = {}
    for marker in item.iter_markers("gate"):
        if len(marker.args) != 1 or not marker.kwargs:
            raise ValueError(
                'the gate marker takes a metric and its limits: @pytest.mark.gate("step_ms", tolerance=0.1)'
            )
        asked.setdefault(str(marker.args[0]), marker.kwargs)
    return gates(asked)


def _accept(item: pytest.Item) -> str:
    """The command line that runs this test alone and stores its measurement as the baseline.

    With ``--against`` the command stores nothing: it only repeats the comparison.
    """
    config = item.config
    saves = not config.stash[SESSION].settings.against
    left_out = {*FILES, *(NIGHTLY if saves else ())}
    # known_args_namespace does not know the options of a conftest.py, and takes their values for paths.
    paths = list(map(str, config.option.file_or_dir))
    options = []
    given = list(map(str, config.invocation_params.args))
    args = iter(given)
    last = ""
    for arg in args:
        # A word given more often than the paths contain it is also an option's value: -k bench, with tests in bench/.
        value = last.startswith("-") and "=" not in last and given.count(arg) > paths.count(arg)
        last = arg
        if arg in left_out:
            last = next(args, "")  # its value
        elif (arg not in paths or value) and arg.partition("=")[0] not in (*left_out, *STORING):
            options.append(arg)
    path, _, test = item.nodeid.partition("::")
    here = os.path.relpath(config.rootpath / path, config.invocation_params.dir)
    # `python -m pytest` adds the current folder to the import path, `pytest` does not.
    how = ["python", "-m", "pytest"] if Path(sys.argv[0]).name == "__main__.py" else ["pytest"]
    return shlex.join([*how, f"{here}::{test}", *options, *(["--save-baseline"] if saves else [])])
