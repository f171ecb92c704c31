"""Ray Train on the digits: two workers, each reads its own part of every epoch, with a loader on another node.

Without RAY_ADDRESS it starts a cluster of two nodes on this machine, and ends it.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

DIGITS = Path(__file__).resolve().parent.parent / "digits"
EPOCHS = int(os.environ.get("EPOCHS", "10"))
NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 200 << 20}


@contextmanager
def two_nodes() -> Iterator[str]:
    """The address of a cluster of two nodes, whose files go with it."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        os.environ["RAY_TMPDIR"] = folder
        Path(folder, "ray").mkdir()
        from ray.cluster_utils import Cluster

        trainers = {**NODE, "resources": {"trainer": 2}, "include_dashboard": False}
        cluster: Any = Cluster(initialize_head=True, head_node_args=trainers)
        cluster.add_node(**NODE, resources={"loader": 2})
        try:
            yield cluster.address
        finally:
            cluster.shutdown()


def train(settings: dict[str, Any]) -> None:
    """What each worker runs."""
    import ray.train
    import torch
    from ray.train.torch import prepare_model
    from torch import nn

    from blobfeed import BatchReader

    rank, ranks = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()

    def digits(name: str, **how: Any) -> BatchReader:
        # One loader beside each worker, and one on whatever node has the resource.
        remote = {"address": settings["address"], "count": 1, "resources": {"loader": 1}}
        given: dict[str, Any] = {"batch_size": 32, "transform": {"scale": 1 / 16}}
        source = {"hdf5": {"path": settings["digits"] + f"/digits_{name}.h5"}}
        return BatchReader(source, device="cpu", num_loaders=1, remote_loaders=remote, **given, **how)

    torch.set_num_threads(1)
    torch.manual_seed(1)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = prepare_model(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    with digits("train", shuffle=True, seed=1) as reader:
        for _ in range(settings["epochs"]):
            seen: list[int] = []
            for batch in reader:
                loss = nn.functional.cross_entropy(model(batch["data"]), batch["label"].long())
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                seen += batch.indices.tolist()
            parts: list[list[int]] = [[] for _ in range(ranks)]
            torch.distributed.all_gather_object(parts, seen)
            if sorted(index for part in parts for index in part) != list(range(reader.samples)):
                raise RuntimeError("together the workers have not seen every sample once")
    if rank == 0:
        with digits("test", rank=0, world_size=1) as test:
            right = sum(int((network(batch["data"]).argmax(1) == batch["label"]).sum()) for batch in test)
            Path(settings["result"]).write_text(f"{right / test.samples:.1%} of {test.samples} test digits right")


def main() -> None:
    with ExitStack() as stack:
        address = os.environ.get("RAY_ADDRESS") or stack.enter_context(two_nodes())
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        import ray
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        stack.callback(ray.shutdown)
        result = Path(folder, "result.txt")
        settings = {"address": address, "digits": str(DIGITS), "epochs": EPOCHS, "result": str(result)}
        workers = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5, "trainer": 1})
        trainer = TorchTrainer(
            train, train_loop_config=settings, scaling_config=workers, run_config=RunConfig(storage_path=folder)
        )
        trainer.fit()
        print(f"2 workers, {EPOCHS} epochs, each sample once in each")
        print(result.read_text())


if __name__ == "__main__":
    main()
