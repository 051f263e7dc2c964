"""A training with Hugging Face's Trainer, which logs its samples. It calls nothing of flexo."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from generations import world
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Sentences(Dataset):
    """Whether the first word is of the first half of the vocabulary."""

    def __init__(self, samples):
        generator = torch.Generator().manual_seed(1)
        self.words = torch.randint(4, 64, (samples, 8), generator=generator)
        self.labels = (self.words[:, 0] < 34).long()

    def __len__(self):
        return len(self.words)

    def __getitem__(self, number):
        return {"input_ids": self.words[number], "labels": self.labels[number], "number": number}


class Logged(Trainer):
    """Logs the samples of each step, and may gather all workers' samples, as TRL's trainers do."""

    numbers = ()
    gathers = False

    def compute_loss(self, model, inputs, *args, **kwargs):
        numbers = inputs.pop("number")
        if model.training:
            self.numbers = [*self.numbers, *numbers.tolist()]
            if self.gathers:
                assert len(self.accelerator.gather(numbers)) == len(numbers) * self.args.world_size
        return super().compute_loss(model, inputs, *args, **kwargs)


class Tell(TrainerCallback):
    def __init__(self, tell, sleep):
        self.tell, self.sleep = tell, sleep
        self.trainer = None
        self.steps = 0

    def on_train_begin(self, args, state, control, **kwargs):
        self.tell("began", steps=state.max_steps, total=state.num_train_epochs)

    def on_step_begin(self, args, state, control, **kwargs):
        self.trainer.numbers = []

    def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
        self.steps += 1
        digest = float(sum(each.detach().double().abs().sum() for each in model.parameters()))
        taken = int(optimizer.state_dict()["state"].get(0, {"step": 0})["step"])
        rate = optimizer.param_groups[0]["lr"]
        epoch = int(state.epoch - 1e-6)
        numbers = self.trainer.numbers
        facts = {"global_step": state.global_step, "at": state.epoch, "heard": self.steps}
        self.tell("step", epoch=epoch, taken=taken, digest=digest, rate=rate, numbers=numbers, **facts)
        time.sleep(0 if Path(args.output_dir, "..", "stop").exists() else self.sleep)

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.tell("log", logs=logs, main=state.is_world_process_zero, global_step=state.global_step)

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        facts = {"accuracy": metrics["eval_accuracy"], "evaluated": metrics["eval_evaluated"]}
        self.tell("epoch", epoch=int(state.epoch - 1e-6), global_step=state.global_step, **facts)

    def on_train_end(self, args, state, control, **kwargs):
        best = {"best": state.best_metric, "logged": len(state.log_history)}
        self.tell("end", global_step=state.global_step, **best)


def metrics(prediction):
    right = prediction.predictions.argmax(-1) == prediction.label_ids
    return {"accuracy": float(right.mean()), "evaluated": len(right)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--sleep", type=float, default=0.02)
    parser.add_argument("--report", default="none")
    parser.add_argument("--gather", action="store_true")
    options = parser.parse_args()
    log = Path(options.log_dir, f"{os.getpid()}.jsonl").open("a", buffering=1)  # noqa: SIM115

    arguments = TrainingArguments(
        output_dir=f"{options.log_dir}/out",
        use_cpu=not torch.cuda.is_available(),
        num_train_epochs=options.epochs,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=50,
        gradient_accumulation_steps=options.accumulate,
        learning_rate=2e-3,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=5,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        remove_unused_columns=False,
        report_to=options.report.split(","),
        disable_tqdm=False,
    )

    def tell(event, **facts):
        place = {"rank": arguments.process_index, "size": arguments.world_size, "pid": os.getpid()}
        place["world"] = world()
        log.write(json.dumps({"event": event, "time": time.time(), **place, **facts}) + "\n")

    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    data, callback = Sentences(options.samples), Tell(tell, options.sleep)
    trainer = Logged(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=data,
        eval_dataset=Sentences(333),
        compute_metrics=metrics,
        callbacks=[callback, EarlyStoppingCallback(early_stopping_patience=50)],
    )
    callback.trainer, trainer.gathers = trainer, options.gather
    trainer.train()
    trainer.save_model(f"{options.log_dir}/model")


if __name__ == "__main__":
    main()
