"""A training with Lightning's Trainer, which logs its samples. It calls nothing of flexo."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from generations import world
from torch import nn
from torch.utils.data import DataLoader, Dataset

if os.environ.get("LIGHTNING") == "pytorch_lightning":
    import pytorch_lightning as pl
    from pytorch_lightning.callbacks import Callback, EarlyStopping, ModelCheckpoint
else:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint


class Points(Dataset):
    def __init__(self, samples):
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(samples, 16, generator=generator)
        self.targets = (self.inputs.sum(1) > 0).long()

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, number):
        return self.inputs[number], self.targets[number], number


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([Points(400)[number] for number in range(400)])


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))

    def training_step(self, batch, batch_idx):
        inputs, targets, _ = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), targets)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, targets, _ = batch
        right = (self.layers(inputs).argmax(1) == targets).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Tell(Callback):
    def __init__(self, tell, sleep):
        self.tell, self.sleep, self.numbers, self.heard = tell, sleep, [], 0

    def on_train_start(self, trainer, module):
        self.tell("began", steps=trainer.estimated_stepping_batches, total=trainer.num_training_batches)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.numbers += batch[2].tolist()
        if trainer.fit_loop._should_accumulate():
            return
        self.heard += 1
        optimizer = trainer.optimizers[0]
        digest = float(sum(each.detach().double().abs().sum() for each in module.parameters()))
        taken = int(optimizer.state_dict()["state"].get(0, {"step": 0})["step"])
        facts = {"global_step": trainer.global_step, "at": batch_idx, "heard": self.heard}
        facts |= {"rate": optimizer.param_groups[0]["lr"], "digest": digest, "taken": taken}
        self.tell("step", epoch=trainer.current_epoch, numbers=self.numbers, **facts)
        self.numbers = []
        time.sleep(0 if Path(trainer.default_root_dir, "stop").exists() else self.sleep)

    def on_validation_epoch_end(self, trainer, module):
        if not trainer.sanity_checking:
            accuracy = float(trainer.callback_metrics["accuracy"])
            self.tell(
                "epoch", epoch=trainer.current_epoch, accuracy=accuracy, global_step=trainer.global_step
            )

    def on_train_end(self, trainer, module):
        best = trainer.checkpoint_callback.best_model_score
        self.tell("end", global_step=trainer.global_step, best=float(best), logged=trainer.current_epoch)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--sleep", type=float, default=0.02)
    parser.add_argument("--iterable", action="store_true")
    parser.add_argument("--report", default="none")
    options = parser.parse_args()
    log = Path(options.log_dir, f"{os.getpid()}.jsonl").open("a", buffering=1)  # noqa: SIM115

    def tell(event, **facts):
        place = {"rank": trainer.global_rank, "size": trainer.world_size, "pid": os.getpid()}
        place["world"] = world()
        log.write(json.dumps({"event": event, "time": time.time(), **place, **facts}) + "\n")

    loggers = []
    if "tensorboard" in options.report:
        loggers.append(pl.loggers.TensorBoardLogger(f"{options.log_dir}/board"))
    if "wandb" in options.report:
        loggers.append(pl.loggers.WandbLogger(save_dir=os.environ["WANDB_DIR"]))
    checkpoints = ModelCheckpoint(f"{options.log_dir}/out", monitor="accuracy", mode="max", save_last=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=options.devices,
        max_epochs=options.epochs,
        accumulate_grad_batches=options.accumulate,
        default_root_dir=options.log_dir,
        callbacks=[
            Tell(tell, options.sleep),
            EarlyStopping("accuracy", mode="max", patience=50),
            checkpoints,
        ],
        log_every_n_steps=5,
        logger=loggers,
        enable_model_summary=False,
    )
    data = Points(options.samples)
    source = Stream() if options.iterable else data
    train = DataLoader(source, batch_size=32, shuffle=not options.iterable)
    trainer.fit(Classifier(), train, DataLoader(Points(333), batch_size=50))


if __name__ == "__main__":
    main()
