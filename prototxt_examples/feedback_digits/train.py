"""Digits of which a tenth has a wrong label: a run that draws less of what it cannot learn beats one that does not.

Both runs make the same number of steps on the same data. From the third epoch on, the one with feedback gives the
tenth of the samples with the greatest loss the weight 0: most of the wrong labels are among them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from blobfeed import BatchReader

DIGITS = Path(__file__).parent.parent / "digits"
SAMPLES, EPOCHS, WARM_UP = 1347, 10, 3
WRONG = frozenset(np.random.default_rng(5).choice(SAMPLES, SAMPLES // 10, replace=False).tolist())


def mislabel(sample: Any, rng: np.random.Generator) -> Any:
    """Runs in the loaders. The wrong label is the same in every epoch."""
    label = sample["label"]
    if sample.index in WRONG:
        label = np.uint8((label + 1 + sample.index % 9) % 10)
    return {"data": sample["data"], "label": label}


def digits(name: str, **how: Any) -> BatchReader:
    source = {"hdf5": {"path": f"digits_{name}.h5"}}
    scale = {"scale": 1 / 16}
    return BatchReader(source, base_dir=DIGITS, batch_size=64, device="cpu", transform=scale, **how)


def train(*, feedback: bool) -> float:
    """The share of the test digits that are told apart in the end; their labels are right."""
    torch.manual_seed(1)
    torch.set_num_threads(1)  # the model is tiny
    hidden = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()
    model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    losses = np.zeros(SAMPLES)
    order = {"sampler": {"draws": SAMPLES}, "seed": 1}  # equal weights to begin with
    with digits("train", decode=mislabel, **order) as reader, digits("test") as test:
        for epoch in range(EPOCHS):
            for batch in reader:
                each = nn.functional.cross_entropy(model(batch["data"]), batch["label"].long(), reduction="none")
                losses[batch.indices] = each.detach()
                optimizer.zero_grad()
                each.mean().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            if feedback and epoch + 1 >= WARM_UP:
                reader.set_weights(losses <= np.quantile(losses, 0.9))
        right = sum(int((model(batch["data"]).argmax(1) == batch["label"]).sum()) for batch in test)
        return right / test.samples


if __name__ == "__main__":
    for feedback in (False, True):
        name = "with feedback" if feedback else "without feedback"
        print(f"{name}: {train(feedback=feedback):.1%} of the test digits right", flush=True)
