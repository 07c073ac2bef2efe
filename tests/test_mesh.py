"""A mesh shape is validated, has a name, and puts neighbouring ranks on the innermost axis."""

from __future__ import annotations

import re

import pytest

from pytest_trainbench.schema.mesh import MeshShape


def test_world_size_is_the_product_of_all_axes() -> None:
    assert MeshShape(dp=2, tp=3, pp=5, cp=7).world_size == 2 * 3 * 5 * 7


def test_axes_start_with_the_outermost_and_skip_degree_one_except_dp() -> None:
    assert list(MeshShape(dp=2, tp=3, pp=5, cp=7).axes.items()) == [
        ("pp", 5),
        ("dp", 2),
        ("cp", 7),
        ("tp", 3),
    ]
    assert MeshShape(tp=4).axes == {"dp": 1, "tp": 4}


def test_neighbouring_ranks_share_the_innermost_axis() -> None:
    shape = MeshShape(dp=2, tp=2, pp=2)
    assert [shape.coordinates(rank) for rank in range(4)] == [
        {"pp": 0, "dp": 0, "tp": 0},
        {"pp": 0, "dp": 0, "tp": 1},
        {"pp": 0, "dp": 1, "tp": 0},
        {"pp": 0, "dp": 1, "tp": 1},
    ]
    assert shape.coordinates(7) == {"pp": 1, "dp": 1, "tp": 1}


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_outside_the_mesh_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} is outside a mesh of 4"):
        MeshShape(dp=4).coordinates(rank)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (MeshShape(), "dp1"),
        (MeshShape(tp=2), "tp2"),
        (MeshShape(dp=2, tp=2, pp=4, cp=8), "dp2-tp2-pp4-cp8"),
    ],
)
def test_the_name_of_a_shape_is_parsed_back_to_it(shape: MeshShape, name: str) -> None:
    assert str(shape) == name
    assert MeshShape.parse(name) == shape


@pytest.mark.parametrize("spelling", [MeshShape(dp=4), "dp4", {"dp": 4}, 4])
def test_every_spelling_gives_the_same_shape(spelling: MeshShape | str | dict[str, int] | int) -> None:
    assert MeshShape.of(spelling) == MeshShape(dp=4)


@pytest.mark.parametrize("degree", [0, -2, 1.0, True, "2", None])
def test_a_degree_must_be_a_positive_whole_number(degree: object) -> None:
    message = f"mesh axis 'tp' needs a positive whole number, not {degree!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        MeshShape(tp=degree)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "dp", "4", "xp2", "dp2-dp2", "dp2_tp2", "dp-2", "DP2"])
def test_a_text_that_is_no_mesh_is_refused_with_the_known_axes(text: str) -> None:
    message = f"{text!r} is not a mesh: type axes with degrees such as dp2-tp2, of dp, tp, pp, cp"
    with pytest.raises(ValueError, match=re.escape(message)):
        MeshShape.parse(text)


@pytest.mark.parametrize(("ranks", "devices", "nodes"), [(1, 8, 1), (6, 8, 1), (8, 8, 1), (16, 8, 2), (3, 1, 3)])
def test_a_mesh_takes_part_of_one_node_or_whole_nodes(ranks: int, devices: int, nodes: int) -> None:
    assert MeshShape(dp=ranks).nodes(devices) == nodes


def test_a_mesh_that_does_not_fill_its_last_node_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^dp6-tp2 needs 12 devices, which do not fill whole nodes of 8$"):
        MeshShape(dp=6, tp=2).nodes(8)
