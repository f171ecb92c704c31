"""Lines on standard error of forty mistakes that newcomers make, each in a fork of one process.

Short programs, a layer in the harness, the trainer and other commands. `pytest -rP` prints the figure.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest

from .support.forks import forks_with
from .support.pictures import encoded, picture

MEDIAN, MOST = 12, 30

READER = """import os
import h5py, numpy as np
from blobfeed import BatchReader

def decode(sample, rng):
    {hook}

with BatchReader({arguments}) as reader:
    {loop}
"""
READ = (
    # arguments, a word of the error
    ("'x.h5', batch_size=4, shufle=True", "'shuffle'"),
    ("'none.h5', batch_size=4", "there is no file"),
    ("'cut.h5', batch_size=4", "cannot be opened as HDF5"),
    ("{'npy': {'data': 'text.npy'}}, batch_size=4", "not a .npy file"),
    ("'x.h5'", "'batch_size' is missing"),
    ("'x.h5', batch_size='4'", "a whole number >= 1"),
    ("'empty/*.h5', batch_size=4", "is empty"),
    ("'pictures', batch_size=4", "image_list"),
    ("'pictures.txt', batch_size=4", "image_list"),
    ("{'hdf5': 'x.h5', 'limit': 5}, batch_size=4", "belongs inside"),
    ("{'hdf': 'x.h5'}, batch_size=4", "'hdf5'"),
    ("'x.h5', batch_size=4, tops=['data', 'lable']", "'label'"),
    ("'unequal.h5', batch_size=4", "differ in length"),
    ("'x.h5', batch_size=4, transform={'scale': '1/255'}", "0.0039"),
    ("'x.h5', batch_size=4, decode=lambda sample: sample", "expected decode(sample, rng)"),
    ("'x.h5', batch_size=4, decode=lambda sample, rng: sample['image']", "the sample has data, label"),
    ("'x.h5', batch_size=4, postprocess=lambda batch: {'new': batch['lable']}", "'label'"),
    ("'x.h5', batch_size=4, sampler={'balance': 'lable'}", "sampler.balance"),
    ("{'image_list': {'path': 'bad.txt', 'shorter_side': 8}}, batch_size=4", "truncated, damaged"),
    ("{'image_list': {'path': 'pictures.txt'}}, batch_size=4, transform={'crop_size': 100}", "shorter_side"),
    ("'x.h5', batch_size=4, rank=3, world_size=2", "below world_size=2"),
    ("'x.h5', batch_size=16, last_batch='drop'", "no full batch"),
)
LOOPED = (
    # arguments, body of decode, body of the loop, a word of the error
    ("'x.h5', batch_size=4", "", "[batch['dta'] for batch in reader]", "'data'"),
    ("'x.h5', batch_size=4, epochs=1", "", "reader.close(); list(reader)", "closed"),
    ("'x.h5', batch_size=4", "", "reader.load_state_dict({'version': 1})", "earlier blobfeed"),
    ("decode", "return 1 // 0", "list(reader)", "ZeroDivisionError"),
    ("decode", "return {**sample, 'label': 1 // int(5 - sample['label'])}", "list(reader)", "sample 5 of epoch 0"),
    ("decode", "return {**sample, 'data': sample['data'][int(sample['label']):]}", "list(reader)", "max_shapes"),
    ("decode", "if sample['label'] == 5: os._exit(3)\n    return sample", "list(reader)", "3 loaders died on it"),
    (
        "decode",
        "return {'data': file['data'][0]}\nfile = h5py.File('x.h5')",
        "list(reader)",
        "h5py objects cannot be pickled",
    ),
)
HARNESS = """from blobfeed import LayerHarness, MultiProcessInputLayer

class Own(MultiProcessInputLayer):
    extra_parameters = {{"strength": 1}}
    def decode({signature}):
        return {{**sample, "label": 1 // int(5 - sample["label"])}}

with LayerHarness(Own, "{{source: {{hdf5: x.h5}}, batch_size: 4{more}") as harness:
    harness.forward(), harness.forward()
"""
HARNESSED = (
    ("self, sample, rng", ", strenght: 2}", "'strength'"),
    ("self, sample, rng", "", "not valid YAML"),
    ("self, sample", "}", "expected decode(sample, rng)"),
    ("self, sample, rng", ", num_loaders: 1}", "sample 5 of epoch 0"),
)
NET = """
layer { name: "d" type: "Python" top: "data" top: "label" python_param { module: "blobfeed.layers"
  layer: "MultiProcessInputLayer" param_str: "{source: {hdf5: x.h5}, batch_size: 4}" } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 8 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
TRAINED = (
    ('bottom: "data"', 'bottom: "dta"', "'data'"),
    ("batch_size: 4", "shufle: true", "'shuffle'"),
    ("num_output: 8", "num_output: 4", "names no class"),
)
COMMANDS = (
    ("inspect none.h5", "there is no 'none.h5'"),
    ("inspct x.h5", "'inspect'"),
    ("params shufle", "'shuffle'"),
)


def mistakes() -> Iterator[tuple[str, list[str], str]]:
    """Write nets; yield the program of each mistake, or the command's arguments, and a word that the error must say."""
    for arguments, word in READ:
        yield READER.format(arguments=arguments, hook="return sample", loop="next(iter(reader))"), [], word
    for arguments, hook, loop, word in LOOPED:
        given = "'x.h5', batch_size=4, num_loaders=1, decode=decode" if arguments == "decode" else arguments
        yield READER.format(arguments=given, hook=hook or "return sample", loop=loop), [], word
    for signature, more, word in HARNESSED:
        yield HARNESS.format(signature=signature, more=more), [], word
    for number, (right, wrong, word) in enumerate(TRAINED):
        Path(f"net_{number}.prototxt").write_text(NET.replace(right, wrong))
        solver = f'net: "net_{number}.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 3'
        Path(f"solver_{number}.prototxt").write_text(solver)
        yield "", ["train", "--solver", f"solver_{number}.prototxt"], word
    for command, word in COMMANDS:
        yield "", command.split(), word


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    labels = np.arange(8)
    for name, rows in (("x", 8), ("unequal", 7)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["data"], file["label"] = np.zeros((8, 3), np.float32), labels[:rows]
    (tmp_path / "cut.h5").write_bytes((tmp_path / "x.h5").read_bytes()[:500])
    (tmp_path / "text.npy").write_text("nothing")
    for name in ("pictures", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(encoded(picture(6, 8), ".png"))
    (tmp_path / "pictures" / "bad.png").write_bytes(b"no picture")
    (tmp_path / "pictures.txt").write_text("pictures/a.png 1\n")
    (tmp_path / "bad.txt").write_text("pictures/bad.png 1\n")
    return tmp_path


@pytest.mark.slow
def test_forty_mistakes_print_twelve_lines_at_the_median_and_thirty_at_most(folder: Path) -> None:
    made, texts = list(mistakes()), []
    with forks_with("blobfeed.readers.batch_reader", "blobfeed.cli", "h5py", "torch", COLUMNS="80") as forks:
        for number, (program, arguments, _) in enumerate(made):
            (path := folder / f"program_{number}.py").write_text(program)
            ended, _, errors = forks.run(folder, path if program else "", *arguments)
            assert ended in (1, 2), (program, arguments, errors)
            texts.append(errors.rstrip())
    lines = [len(text.splitlines()) for text in texts]
    print(f"{len(made)} mistakes: {median(lines)} lines on standard error at the median, {max(lines)} at most")
    assert len(made) == 40
    assert [text for (*_, word), text in zip(made, texts, strict=True) if word not in text] == []
    assert [text for text in texts if "shorten(" in text] == [], "a frame that only passes the error on"
    assert median(lines) <= MEDIAN
    assert max(lines) <= MOST, max(texts, key=lambda text: text.count("\n"))
