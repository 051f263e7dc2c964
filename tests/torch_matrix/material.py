"""Generates the data sets and models that scripts of the matrix train with: small, and learnable.

python material.py KIND FOLDER generates one into the folder in which the script runs. Runs in the environment
of the scripts. Token 0 fills sequences up in all of them (observer/sitecustomize.py).
"""

from __future__ import annotations

import argparse
import functools
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

CLASSES = 10
LEARNT = 0.5
"""The mean loss at which BERT's first training ends: half of what there is to learn is left."""
WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("n", "r", "s", "l")]


def digits(folder: Path) -> None:
    """60,000 images of 10 blurred patterns, in the files of MNIST as torchvision and Lightning keep them."""
    generator = np.random.default_rng(0)
    patterns = generator.integers(0, 200, (CLASSES, 28, 28))
    for name, file, count in (("train", "training", 60000), ("t10k", "test", 10000)):
        labels = generator.integers(0, CLASSES, count, dtype=np.uint8)
        noise = generator.integers(0, 56, (count, 28, 28))
        images = (patterns[labels] + noise).astype(np.uint8)
        raw, processed = folder / "MNIST" / "raw", folder / "MNIST" / "processed"
        raw.mkdir(parents=True, exist_ok=True)
        processed.mkdir(exist_ok=True)
        head = np.array([2051, count, 28, 28], ">i4").tobytes()
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(
            np.array([2049, count], ">i4").tobytes() + labels.tobytes()
        )
        torch.save((torch.tensor(images), torch.tensor(labels.astype(np.int64))), processed / f"{file}.pt")


def sentence_pairs(folder: Path, training: int = 1600) -> None:
    """MRPC, as accelerate's examples load it: whether two sentences say the same. With a small BERT."""
    source, rows = random.Random(0), {}
    home = folder / "nyu-mll" / "glue"
    home.mkdir(parents=True)
    for split, count in (("train", training), ("validation", 256), ("test", 256)):
        rows[split] = [{**_pair(source), "idx": number} for number in range(count)]
        (home / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[split]))
    files = "".join(
        f"  - split: {split}\n    path: {split}.jsonl\n" for split in ("train", "validation", "test")
    )
    (home / "README.md").write_text(f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}---\n")
    (folder / "glue").mkdir()
    (folder / "glue" / "glue.py").write_text(_ACCURACY)
    _bert(folder / "bert-base-cased", rows["train"])


def _pair(source: random.Random) -> dict[str, str | int]:
    label = source.randrange(2)
    first = [source.choice(WORDS[:60]) for _ in range(source.randint(8, 14))]
    second = first[::-1] if label else [source.choice(WORDS[60:]) for _ in first]
    return {"sentence1": " ".join(first), "sentence2": " ".join(second), "label": label}


_ACCURACY = """import datasets
import evaluate


class Glue(evaluate.Metric):
    def _info(self):
        names = ("predictions", "references")
        features = datasets.Features({name: datasets.Value("int64") for name in names})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        hits = sum(int(a == b) for a, b in zip(predictions, references))
        return {"accuracy": hits / len(predictions), "f1": hits / len(predictions)}
"""


def _bert(home: Path, rows: list[dict[str, str | int]]) -> None:
    """A BERT that has begun to learn from the rows: the scripts' small learning rates can only refine it."""
    from transformers import BertConfig, BertForSequenceClassification

    tokenizer = _words(home, cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=48, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss, at = 1.0, 0
    while loss > LEARNT:
        batch = [rows[(at + n) % len(rows)] for n in range(32)]
        texts = [[str(row[name]) for row in batch] for name in ("sentence1", "sentence2")]
        labels = torch.tensor([row["label"] for row in batch])
        found = model(**tokenizer(*texts, padding=True, return_tensors="pt"), labels=labels).loss
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        loss, at = 0.9 * loss + 0.1 * found.item(), at + 32
    model.save_pretrained(home)


def _words(home: Path, **special: str):  # type: ignore[no-untyped-def]
    """A tokenizer of whole words, saved in `home`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", *special.values()]
    vocabulary = {word: number for number, word in enumerate([*names, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    if "cls_token" in special:
        places = [(each, vocabulary[each]) for each in ("[CLS]", "[SEP]")]
        words.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=places
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=128, **special
    )
    home.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(home)
    return tokenizer


def language(folder: Path) -> None:
    """Sentences of a made-up grammar, alone and in pairs of a good and a bad one. With a small Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    source = random.Random(0)

    def sentence(step: int) -> str:
        at = source.randrange(len(WORDS))
        return " ".join(WORDS[(at + step * n) % len(WORDS)] for n in range(source.randint(8, 16)))

    for name, make in {
        "sentences": lambda: {"text": sentence(1)},
        "choice": lambda: {"prompt": sentence(1), "chosen": " " + sentence(1), "rejected": " " + sentence(7)},
        "label": lambda: {
            "prompt": sentence(1),
            "completion": " " + sentence(1),
            "label": source.random() < 0.5,
        },
    }.items():
        (folder / name).mkdir(parents=True)
        for split, count in (("train", 1600), ("test", 64)):
            rows = [json.dumps(make()) for _ in range(count)]
            (folder / name / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    home = folder / "llama"
    tokenizer = _words(home, bos_token="<s>", eos_token="</s>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=48, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=128, pad_token_id=0, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(home)


def images(folder: Path) -> None:
    """Folders of 32 x 32 images, one for each of four classes, in train, val and test."""
    from PIL import Image

    generator = np.random.default_rng(0)
    patterns = generator.integers(0, 200, (4, 32, 32, 3))
    for split, count in (("train", 320), ("val", 40), ("test", 40)):
        for label in range(4):
            home = folder / "images" / split / f"class{label}"
            home.mkdir(parents=True)
            for number in range(count // 4):
                picture = (patterns[label] + generator.integers(0, 56, (32, 32, 3))).astype(np.uint8)
                Image.fromarray(picture).save(home / f"{number}.png")


KINDS: dict[str, Callable[[Path], None]] = {
    "digits": digits,
    "sentence_pairs": sentence_pairs,
    "many_sentence_pairs": functools.partial(sentence_pairs, training=16_000),
    "language": language,
    "images": images,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    KINDS[options.kind](options.folder)
