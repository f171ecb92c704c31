"""What a prototxt says, where it says it, and what is said about one that cannot be honoured."""

from __future__ import annotations

from pathlib import Path

from blobfeed.trainer.prototxt import (
    TABLE,
    Document,
    LayerParameter,
    Message,
    NetParameter,
    Phase,
    PoolMethod,
    SolverParameter,
    message_class,
    message_classes,
    read_locations,
    read_prototxt,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.support.part import examples


def read(folder: Path, text: str, declared: type[Message] = NetParameter) -> Document[Message]:
    path = folder / "some.prototxt"
    path.write_text(text)
    return read_prototxt(path, declared)


def test_fields_have_caffes_names_values_and_defaults(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text('name: "n" layer { name: "p" type: "Pooling" pooling_param { pool: AVE kernel_size: 3 } }')
    layer = read_prototxt(path, NetParameter).message.layer[0]
    assert (layer.name, layer.type) == ("p", "Pooling")
    assert layer.pooling_param.pool == PoolMethod.AVE
    assert (layer.pooling_param.kernel_size, layer.pooling_param.stride) == (3, 1)
    assert layer.HasField("pooling_param")
    assert not layer.HasField("relu_param")
    assert layer.python_param.param_str == ""


def test_fields_have_caffes_numbers() -> None:
    # As caffe.proto has them: a net in protobuf's binary form means the same to both.
    expected = {
        ("LayerParameter", "convolution_param"): 106,
        ("LayerParameter", "include"): 8,
        ("LayerParameter", "python_param"): 130,
        ("NetParameter", "layer"): 100,
        ("PythonParameter", "param_str"): 3,
        ("PoolingParameter", "global_pooling"): 12,
        ("ConvolutionParameter", "dilation"): 18,
        ("NetStateRule", "not_stage"): 5,
    }
    pool = message_class(NetParameter).DESCRIPTOR.file
    found = {key: pool.message_types_by_name[key[0]].fields_by_name[key[1]].number for key in expected}
    assert found == expected
    solver = message_class(SolverParameter).DESCRIPTOR.fields_by_name
    assert (solver["net"].number, solver["iter_size"].number, solver["base_lr"].number) == (24, 36, 5)


def test_every_row_of_the_table_becomes_a_message_with_its_fields() -> None:
    rows = [row.split(": ") for row in TABLE.strip().replace("\n    ", " ").splitlines()]
    assert len(message_classes()) == len(rows) > 60
    for name, fields in rows:
        built = message_classes()[name].DESCRIPTOR.fields
        assert [f"{field.number} {field.name}" for field in built] == [
            " ".join(f.split()[:2]) for f in fields.split(", ")
        ]
    assert {declared.__name__ for declared in Message.__subclasses__()} <= message_classes().keys()


def test_binary_form_is_caffes() -> None:
    # Field 2 (type) of wire type 2: byte 0x12, the length, the text.
    assert message_class(LayerParameter)(type="ReLU").SerializeToString() == b"\x12\x04ReLU"


def test_a_file_may_begin_with_the_mark_of_windows_editors(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text('name: "n"\r\n', encoding="utf-8-sig")
    assert read_prototxt(tmp_path / "net.prototxt", NetParameter).message.name == "n"


def test_locations_survive_comments_strings_and_lists() -> None:
    root = read_locations(
        'name: "layer { # no"  # layer {\n'
        'layer { name: \'a\\\'b\' bottom: ["x", "y"] }\n'
        'layer: [ { name: "b" },\n         { name: "c" type # odd\n: "T" } ]\n'
        'layer < top: "t" >'
    )
    where = {
        path: (location.line, location.column)
        for path in (
            ("layer", 0),
            ("layer", 0, "bottom", 1),
            ("layer", 2),
            ("layer", 2, "type"),
            ("layer", 3, "top"),
            ("layer", 3, "missing"),
        )
        for location in [root.follow(*path)]
    }
    assert where == {
        ("layer", 0): (2, 1),
        ("layer", 0, "bottom", 1): (2, 22),
        ("layer", 2): (4, 10),
        ("layer", 2, "type"): (4, 22),
        ("layer", 3, "top"): (6, 9),
        ("layer", 3, "missing"): (6, 1),
    }


@examples(50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.sampled_from(["", "# {\n", "\n"])), max_size=8))
def test_every_layer_is_located_where_it_was_written(layers: list[tuple[int, int, str]]) -> None:
    text, expected = "", []
    for blank_lines, spaces, comment in layers:
        text += "\n" * blank_lines + " " * spaces
        before = text.rpartition("\n")
        expected.append((text.count("\n") + 1, len(before[2]) + 1))
        text += f'layer {comment}{{ name: "x" include {{ phase: TEST }} }}'
    root = read_locations(text)
    assert [(location.line, location.column) for location in root.inside] == expected
    assert all(location.follow("include", "phase").name == "phase" for location in root.inside)


def test_phases_are_numbered_as_layers_get_them() -> None:
    assert (Phase.TRAIN, Phase.TEST) == (0, 1)
