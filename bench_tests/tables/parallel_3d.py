"""Every split of the GPT beside published figures, with the ideal bubble of its pipeline and the measured idle time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench_tests.engines import ENGINES, SCHEDULES
from bench_tests.tables.format import built_by, peak_mib, percent, rate, shown
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.record import Record

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED = {
    (1, 1): ("9.63 ± 0.29", "25,061"),
    (2, 1): ("7.59 ± 0.14", "11,300"),
    (4, 1): ("6.16 ± 0.06", "5,673"),
    (1, 2): ("8.46 ± 0.17", "12,375"),
    (1, 4): ("8.03 ± 0.12", "8,141"),
    (2, 2): ("7.37 ± 0.11", "6,211"),
    (4, 4): ("6.24 ± 0.08", "5,673"),
}
"""(TP, PP) -> samples/s and MiB of a public comparison: the same GPT 1.3B with AMP, global batch 4, on 4
V100-32GB-class GPUs. Shown for comparison; no verdict uses them. The last row would need 16 devices, and its memory
equals that of the 4 × 1 row."""

PUBLISHED_MODEL = "gpt-1.3b"
PUBLISHED_ON = 4


def parallel_3d(records: Sequence[Record]) -> pd.DataFrame | None:
    """One line for each measured row, with its judged figures.

    *ideal bubble* is :func:`ideal_bubble`. *idle or waiting* is the share of the step in which even the busiest device
    does not compute: bubbles, exposed communication and waiting for the host. It is empty on a CPU.
    """
    done = [record for record in built_by(records, "parallel_step") if record.case.params["engine"] in ENGINES]
    return shown(map(_line, sorted(done, key=_order)))


def ideal_bubble(schedule: str | None, *, ranks: int, micro_batches: int) -> float | None:
    """Share of a step that a rank of a pipeline is idle if all stages take equally long and nothing else takes time.

    ``None`` if the sources do not say. With p ranks, m micro-batches and v chunks a rank:

    * GPipe and 1F1B: (p − 1) / (m + p − 1). Huang et al., arXiv 1811.06965, section 2.3; Narayanan et al., arXiv
      2104.04473, section 2.2.1, which gives (p − 1) / m of the ideal time.
    * interleaved: (p − 1) / (v·m + p − 1). Narayanan et al., section 2.2.2, which gives (p − 1) / (v·m) of the ideal
      time.
    * zero bubble, if forward and the two halves of backward take equally long: (p − 1) / (3·v·m + p − 1). ZB-H1 leaves
      p − 1 of 3·m such parts idle (Qi et al., arXiv 2401.10241, table 1), and interleaving leaves v times less.
    * ZB-V: 0 (Qi et al., section 6), if at least 2p − 1 micro-batches fill it, as PyTorch's implementation says.
    """
    if schedule is None or ranks == 1:
        return 0.0
    row = SCHEDULES[schedule]
    if row.mirrored:
        return 0.0 if micro_batches >= 2 * ranks - 1 else None
    parts = (3 if row.weights_apart else 1) * row.chunks * micro_batches
    return (ranks - 1) / (parts + ranks - 1)


def _order(record: Record) -> tuple[int, ...]:
    mesh, schedule = record.case.mesh, record.case.params.get("schedule")
    engine = list(ENGINES).index(record.case.params["engine"])
    return mesh.tp * mesh.pp, mesh.pp, mesh.dp, engine, list(SCHEDULES).index(schedule) if schedule else -1


def _published(model: str, mesh: MeshShape) -> tuple[str, str] | None:
    """The published figures of the same split on as many devices."""
    devices = max(PUBLISHED_ON, mesh.tp * mesh.pp)
    return PUBLISHED.get((mesh.tp, mesh.pp)) if (model, mesh.world_size) == (PUBLISHED_MODEL, devices) else None


def _line(record: Record) -> dict[str, str]:
    mesh, params = record.case.mesh, record.case.params
    schedule = params.get("schedule")
    micro_batches = params["global_batch"] // (params["micro_batch"] * mesh.dp)
    step_ms, compute_ms = record.figure("step_ms"), record.figure("compute_ms")
    bubble = ideal_bubble(schedule, ranks=mesh.pp, micro_batches=micro_batches)
    idle = None if step_ms is None or compute_ms is None else max(0.0, 1 - compute_ms / step_ms)
    published_samples_per_s, published_mib = _published(params["model"], mesh) or ("", "")
    return {
        "engine": ENGINES[params["engine"]].title,
        "schedule": SCHEDULES[schedule].title if schedule else "",
        "TP": str(mesh.tp),
        "PP": str(mesh.pp),
        "DP": str(mesh.dp),
        "micro-batches": str(micro_batches),
        "samples/s": rate(record),
        "peak MiB": peak_mib(record),
        "ideal bubble": percent(bubble if mesh.pp > 1 else None),
        "idle or waiting": percent(idle),
        "published samples/s": published_samples_per_s,
        "published MiB": published_mib,
    }
