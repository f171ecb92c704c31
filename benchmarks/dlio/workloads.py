"""The workloads that DLIO makes and trains on: the records of MLPerf Storage's workloads, fewer or smaller."""

from __future__ import annotations

from dataclasses import dataclass

KB, MB = 1000, 1_000_000


@dataclass(frozen=True)
class Workload:
    """`record`: bytes of a sample. `files` is a multiple of samples × batch × ranks, as DLIO counts.

    `steps_ms`: how long the simulated accelerator takes for a batch; the first is short enough for torch to fall below
    a half. `about`: what it is in MLPerf, and what was changed.
    """

    name: str
    form: str
    record: int
    files: int
    samples: int
    batch: int
    steps_ms: tuple[float, ...]
    about: str

    @property
    def total(self) -> int:
        return self.files * self.samples


WORKLOADS = (
    Workload(
        "unet3d", "npz", 2 * MB, 128, 1, 4, (4, 16), "as in MLPerf, a file a sample; 146 MB made 2, batch 7 made 4"
    ),
    Workload(
        "resnet50, HDF5", "hdf5", 114_660, 256, 4, 16, (3, 10), "open division (TFRecord there); batch 400 made 16"
    ),
    Workload("resnet50, npz", "npz", 114_660, 1024, 1, 16, (3, 10), "open division; a file a sample"),
    Workload("cosmoflow, HDF5", "hdf5", 2_828_486, 128, 1, 1, (1, 3.5), "open division; 3.5 ms is MLPerf's H100"),
    Workload("cosmoflow, npz", "npz", 2_828_486, 128, 1, 1, (1, 3.5), "open division; 3.5 ms is MLPerf's H100"),
    Workload("bert, HDF5", "hdf5", 2500, 384, 8, 48, (1, 3), "open division; 313,532 records a file made 8"),
    Workload(
        "bert, binary", "indexed_binary", 2500, 384, 8, 48, (1, 3), "DLIO's indexed binary; a source of one's own"
    ),
    Workload("jpeg", "jpeg", 114_660, 512, 1, 16, (5, 20), "gray noise of 338×338, as DLIO makes it"),
    Workload("png", "png", 114_660, 512, 1, 16, (5, 20), "the same"),
)

LOADERS = {
    "DLIO's torch": "torch's DataLoader with DLIO's own reader, which delivers a constant in place of the sample",
    "torch, fair": "the same loader with a reader that keeps HDF5 files open, formats no debug text for each sample, "
    "and delivers the sample",
    "DALI": "DLIO's native DALI, which decodes each picture and delivers the constant; one epoch: its second fails",
    "blobfeed.DataLoader": "the same as `torch, fair`, with that name in the place of torch's DataLoader",
    "blobfeed": "a declared source, for `binary` a class of 20 lines; delivers the sample, as a torch tensor",
}
"""Each delivers batches in the order of the files, by two workers or threads; labels are left out."""

PICTURES = ("jpeg", "png")


def loads(loader: str, workload: Workload) -> bool:
    return loader != "DALI" or workload.form in PICTURES
