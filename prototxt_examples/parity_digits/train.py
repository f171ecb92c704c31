"""Fine-tunes a Caffe model in a plain torch loop, fed by a BatchReader, and exports it: `train.py MODEL`."""

import sys
from pathlib import Path
from typing import Any

import torch
from blobfeed.trainer import Net

from blobfeed import BatchReader

HERE = Path(__file__).parent
DIGITS = HERE.parent / "digits"


def digits(name: str, **how: Any) -> BatchReader:
    source = {"hdf5": {"path": f"digits_{name}.h5"}}
    scale = {"scale": 1 / 16}
    return BatchReader(source, base_dir=DIGITS, batch_size=64, device="cpu", transform=scale, **how)


torch.manual_seed(1)
net = Net(HERE / "net.prototxt", phase="TRAIN", weights=sys.argv[1])  # "parity", which the file lacks, begins anew
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)

with digits("train", shuffle=True, seed=1) as train, digits("test") as test:
    for epoch in range(1, 4):
        net.train()
        for batch in train:
            loss = net(data=batch["data"], label=batch["label"] % 2)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        net.eval()
        parts = [(len(each["label"]), net(data=each["data"], label=each["label"] % 2)["accuracy"]) for each in test]
        right = sum(rows * float(share) for rows, share in parts)
        print(f"epoch {epoch}: {right / test.samples:.1%} of {test.samples} test digits right", flush=True)

deploy = Net(HERE / "net.prototxt", phase="TEST", stages=["deploy"])
deploy.load_state_dict(net.state_dict())
for weights in deploy.parameters():
    weights.data = weights.data.contiguous()  # from channels last, of which torch.export.save warns
torch.export.save(torch.export.export(deploy, (), {"data": torch.zeros(64, 1, 8, 8)}), "parity.pt2")
