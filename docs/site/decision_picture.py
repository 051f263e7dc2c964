"""Draws docs/images/can-my-script.svg: `python docs/site/decision_picture.py` writes the file anew.

The picture asks one question after the other. A yes leads to the right, to what happens to the script.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "images" / "can-my-script.svg"
ROW, TOP, HEIGHT = 92, 14, 62
LEFT, WIDE = 14, 350
RIGHT, WIDER = 452, 402
_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
    ' aria-label="Can my script use flexo? A decision tree" font-family="sans-serif" font-size="15">'
)
_STYLE = (
    "<style>"
    ".q{fill:#fff;stroke:#00897b;stroke-width:2}.a{fill:#e0f2f1;stroke:none}.n{fill:#eceff1;stroke:none}"
    "text{fill:#102027}.y{font-size:13px;fill:#00695c}line{stroke:#00897b;stroke-width:2}"
    "</style>"
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the script, and what a yes means."""

    asks: tuple[str, ...]
    """Lines of the question."""
    answer: tuple[str, ...]
    """Lines of what happens if the answer is yes."""
    grows: bool = True
    """Whether such a script grows and shrinks."""


QUESTIONS = (
    Question(
        ("Does it use Accelerate, HF's Trainer", "or Lightning, with DDP?"),
        ("It grows and shrinks unchanged.", "flexo run accelerate launch train.py"),
    ),
    Question(
        ("Does it shard the model: HSDP,", "or tensor parallelism with DDP?"),
        ("It grows by whole replicas.", "flexo run --elastic-unit=N python train.py"),
    ),
    Question(
        ("Does it average gradients itself, or", "read a stream (IterableDataset)?"),
        ("It grows if it declares its state:", "job = flexo.elastic(model=model, position=0)"),
    ),
    Question(
        ("Does it call torch.distributed and", "DistributedDataParallel?"),
        ("It grows and shrinks unchanged.", "flexo run torchrun train.py"),
    ),
    Question(
        ("Is it a Horovod script with", "hvd.elastic.run?"),
        ("It grows and shrinks unchanged.", "flexo run python train.py"),
    ),
    Question(
        ("Anything else: FSDP over all workers,", "plain Horovod, any other program?"),
        ("It trains at the size of its base.", "flexo run python train.py"),
        grows=False,
    ),
)


def picture() -> str:
    """The picture as SVG."""
    height = TOP + ROW * len(QUESTIONS)
    parts = [_HEAD.format(width=RIGHT + WIDER + LEFT, height=height), _STYLE]
    for place, question in enumerate(QUESTIONS):
        parts += _row(TOP + ROW * place, question, last=place == len(QUESTIONS) - 1)
    return "\n".join([*parts, "</svg>", ""])


def _row(top: int, question: Question, *, last: bool) -> list[str]:
    """A question, its answer, and the arrows to the answer and to the next question."""
    middle, below = top + HEIGHT // 2, top + HEIGHT
    parts = [
        _box("q", LEFT, top, WIDE, question.asks),
        _box("a" if question.grows else "n", RIGHT, top, WIDER, question.answer),
        f'<line x1="{LEFT + WIDE}" y1="{middle}" x2="{RIGHT}" y2="{middle}"/>',
        f'<text class="y" x="{LEFT + WIDE + 28}" y="{middle - 6}">yes</text>',
    ]
    if not last:
        centre = LEFT + WIDE // 2
        parts += [
            f'<line x1="{centre}" y1="{below}" x2="{centre}" y2="{top + ROW}"/>',
            f'<text class="y" x="{centre + 8}" y="{below + 19}">no</text>',
        ]
    return parts


def _box(kind: str, left: int, top: int, width: int, lines: tuple[str, ...]) -> str:
    texts = "".join(
        f'<text x="{left + 14}" y="{top + 26 + 21 * place}">{escape(line)}</text>'
        for place, line in enumerate(lines)
    )
    return f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{HEIGHT}" rx="6"/>{texts}'


if __name__ == "__main__":
    FILE.write_text(picture(), encoding="utf-8")
