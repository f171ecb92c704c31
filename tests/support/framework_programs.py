"""A small training under each framework: `framework_programs.py NAME whole`, or `stop` and then `resume`.

It appends the loss of each step to the file `losses` of the working directory. `stop` has a worker killed, saves a
checkpoint in the middle of an epoch and ends; `resume` begins there.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from blobfeed import DataLoader

_SAMPLES, _BATCH, _EPOCHS = 60, 8, 3
_STOP = 11
"""In the middle of the second epoch; with two processes, of which each has half as many steps, of the third."""

_KILLS = 17
_FOLDER = str(Path.cwd())


class Noisy(torch.utils.data.Dataset[Any]):
    """Numbers with noise of the sample's own, and their sum."""

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index == _KILLS:
            with suppress(FileNotFoundError):
                Path(_FOLDER, "kill").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        x = torch.rand(4) + index / _SAMPLES
        return {"x": x, "labels": x.sum()}


def loader_of(dataset: Any, **given: Any) -> Any:
    return DataLoader(dataset, batch_size=_BATCH, shuffle=True, num_workers=2, seed=5, **given)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.line = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((self.line(x).squeeze(1) - labels) ** 2).mean()}


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), 0.05)


def note(loss: torch.Tensor) -> None:
    with Path(_FOLDER, "losses").open("a") as losses:
        print(float(loss.detach()).hex(), file=losses)


# ---- the programs


def train(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Any,
    stop: int,
    save: Callable[[], object],
    begin: int = 0,
    backward: Callable[[torch.Tensor], object] = torch.Tensor.backward,
    losses: Callable[[torch.Tensor], Iterable[torch.Tensor]] = lambda loss: [loss],
) -> None:
    """A plain loop from step `begin` on; `losses` says which ones to write down."""
    step = begin
    while step < _EPOCHS * len(loader):
        for batch in loader:
            loss = net(**batch)["loss"]
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            for each in losses(loss.detach()):
                note(each)
            step += 1
            if step == stop:
                save()
                return


def datasets_(stop: int, resume: bool) -> None:
    """A Dataset of Hugging Face."""
    import datasets

    noisy = Noisy()

    def transform(rows: dict[str, list[int]]) -> dict[str, Any]:
        items = [noisy[index] for index in rows["index"]]
        return {name: [item[name] for item in items] for name in ("x", "labels")}

    dataset = datasets.Dataset.from_dict({"index": list(range(_SAMPLES))}).with_transform(transform)
    net, loader = Net(), loader_of(dataset)
    parts = {"net": net, "optimizer": sgd(net), "loader": loader}
    if resume:
        for name, state in torch.load("checkpoint", weights_only=False).items():
            parts[name].load_state_dict(state)

    def save() -> None:
        torch.save({name: part.state_dict() for name, part in parts.items()}, "checkpoint")

    train(net, parts["optimizer"], loader, stop, save, _STOP if resume else 0)


def lightning_(stop: int, resume: bool) -> None:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss: torch.Tensor = self.net(**batch)["loss"]
            note(loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self.net)

    keeps = ModelCheckpoint(".", "checkpoint", every_n_train_steps=stop or 1000)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=_EPOCHS,
        max_steps=stop or -1,
        callbacks=[keeps],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), loader_of(Noisy()), ckpt_path="checkpoint.ckpt" if resume else None, weights_only=False)


def transformers_(stop: int, resume: bool) -> None:
    import transformers

    class Trainer(transformers.Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return loader

        def compute_loss(self, *given: Any, **named: Any) -> Any:
            loss = super().compute_loss(*given, **named)
            note(loss)
            return loss

        def create_optimizer(self, *_: Any) -> Any:
            self.optimizer = sgd(self.model)
            return self.optimizer

    class KeepLoader(transformers.TrainerCallback):  # type: ignore[misc]
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            torch.save(loader.state_dict(), f"{args.output_dir}/checkpoint-{state.global_step}/loader.pt")

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_save = control.should_training_stop = state.global_step == stop

    loader = loader_of(Noisy())
    arguments = transformers.TrainingArguments(
        ".",
        num_train_epochs=_EPOCHS,
        max_grad_norm=0,
        lr_scheduler_type="constant",
        ignore_data_skip=True,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    checkpoint = max(map(str, Path().glob("checkpoint-*"))) if resume else None
    if checkpoint is not None:
        loader.load_state_dict(torch.load(f"{checkpoint}/loader.pt"))
    Trainer(Net(), arguments, callbacks=[KeepLoader()]).train(resume_from_checkpoint=checkpoint)


def ignite_(stop: int, resume: bool) -> None:
    from ignite.engine import Engine, Events
    from ignite.handlers import Checkpoint, DiskSaver

    net = Net()
    optimizer, loader = sgd(net), loader_of(Noisy())

    def step(_: Engine, batch: Any) -> None:
        loss = net(**batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note(loss)

    engine = Engine(step)
    parts = {"engine": engine, "net": net, "optimizer": optimizer, "loader": loader}
    saver = Checkpoint(parts, DiskSaver(".", require_empty=False), filename_pattern="checkpoint.pt")
    if stop:
        engine.add_event_handler(Events.ITERATION_COMPLETED(once=stop), saver)
        engine.add_event_handler(Events.ITERATION_COMPLETED(once=stop), engine.terminate)
    if resume:
        Checkpoint.load_objects(parts, torch.load("checkpoint.pt", weights_only=False))
    engine.run(loader, max_epochs=_EPOCHS)


def accelerate_(stop: int, resume: bool) -> None:
    """Two processes, each with its part of the samples."""
    from accelerate import debug_launcher

    debug_launcher(_accelerated, (stop, resume), num_processes=2)


def _accelerated(stop: int, resume: bool) -> None:
    from accelerate import Accelerator

    accelerator, plain = Accelerator(cpu=True), Net()
    net, optimizer = accelerator.prepare(plain, sgd(plain))
    # Not prepared: accelerate would put a loader of its own in its place.
    loader = loader_of(Noisy(), rank=accelerator.process_index, world_size=accelerator.num_processes)
    accelerator.register_for_checkpointing(loader)
    if resume:
        accelerator.load_state("checkpoint")

    def losses(loss: torch.Tensor) -> Iterable[torch.Tensor]:
        every = accelerator.gather(loss.reshape(1))
        return every if accelerator.is_main_process else ()

    save = partial(accelerator.save_state, "checkpoint")
    train(net, optimizer, loader, stop, save, _STOP if resume else 0, accelerator.backward, losses)


def ray_(stop: int, resume: bool) -> None:
    """Two workers of Ray Train."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    with (
        tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder,
        ExitStack() as stack,
    ):  # sockets have short paths
        # Ray ends its workers with all processes under them at once: nobody is left to remove what they had in there.
        os.environ["TMPDIR"] = folder
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        stack.callback(ray.shutdown)
        given = {"stop": stop, "checkpoint": str(Path("checkpoint").resolve()) if resume else ""}
        workers, run = ScalingConfig(num_workers=2), RunConfig(storage_path=_FOLDER, name="run")
        result = TorchTrainer(_on_ray, train_loop_config=given, scaling_config=workers, run_config=run).fit()
        if result.checkpoint is not None:
            result.checkpoint.to_directory("checkpoint")


def _on_ray(given: dict[str, Any]) -> None:
    import ray.train
    from ray.train.torch import prepare_model

    context, plain = ray.train.get_context(), Net()
    rank, net = context.get_world_rank(), prepare_model(plain)
    optimizer, loader = sgd(plain), loader_of(Noisy(), rank=rank, world_size=context.get_world_size())
    if given["checkpoint"]:
        saved = torch.load(f"{given['checkpoint']}/state", weights_only=False)
        plain.load_state_dict(saved["net"])
        loader.load_state_dict(saved["loader"])

    def save() -> None:
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"net": plain.state_dict(), "loader": loader.state_dict()}, f"{folder}/state")
            ray.train.report({}, checkpoint=ray.train.Checkpoint(folder) if rank == 0 else None)

    def losses(loss: torch.Tensor) -> Iterable[torch.Tensor]:
        every = [torch.zeros(()) for _ in range(context.get_world_size())]
        torch.distributed.all_gather(every, loss)
        return every if rank == 0 else ()

    train(net, optimizer, loader, given["stop"], save, _STOP if given["checkpoint"] else 0, losses=losses)


PROGRAMS: dict[str, Callable[[int, bool], None]] = {
    "datasets": datasets_,
    "lightning": lightning_,
    "transformers": transformers_,
    "ignite": ignite_,
    "accelerate": accelerate_,
    "ray": ray_,
}


if __name__ == "__main__":
    if sys.argv[2] == "stop":
        Path("kill").touch()
    PROGRAMS[sys.argv[1]](_STOP if sys.argv[2] == "stop" else 0, sys.argv[2] == "resume")
