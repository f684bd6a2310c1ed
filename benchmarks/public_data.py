"""Small synthetic data in the forms that public training scripts read."""

import io
import json
import random
import struct
import tarfile
from collections.abc import Sequence
from pathlib import Path

CLASSES = ("n01440764", "n01443537")
IMAGES = {"train": 96, "val": 16}
SIDE = 160
DIGITS = {"train": 1280, "t10k": 128}
LIGHTNING_DIGITS = 60_000
GRAPHS = 240


def nothing(root: Path, data: Path) -> None:
    """For a script that makes its own."""


def jpeg(number: int) -> bytes:
    """An image of waves, another for each number."""
    import numpy as np
    from PIL import Image

    across, down = np.meshgrid(np.linspace(0, 9, SIDE), np.linspace(0, 9, SIDE))
    waves = [127 + 120 * np.sin(across * (1 + number % 5) + turn) * np.cos(down + number) for turn in range(3)]
    buffer = io.BytesIO()
    Image.fromarray(np.stack(waves, axis=2).astype(np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


def six_classes(root: Path, data: Path) -> None:
    """As `images`, for a script that looks at the five likeliest classes."""
    images(root, data, (*CLASSES, "n02000001", "n02000002", "n02000003", "n02000004"))


def images(root: Path, data: Path, classes: Sequence[str] = CLASSES) -> None:
    """`images/train/CLASS/N.jpg` and `images/val`."""
    for split, count in IMAGES.items():
        for number in range(count):
            path = data / "images" / split / classes[number % len(classes)] / f"{number:04d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(number))


def shards(root: Path, data: Path) -> None:
    """Tar files of images and classes, as webdataset reads them."""
    folder = data / "shards"
    folder.mkdir()
    for split, count, files in (("train", IMAGES["train"], 4), ("val", IMAGES["val"], 2)):
        for file in range(files):
            with tarfile.open(folder / f"{split}-{file:04d}.tar", "w") as archive:
                for number in range(file, count, files):
                    for suffix, content in (("jpg", jpeg(number)), ("cls", str(number % len(CLASSES)).encode())):
                        member = tarfile.TarInfo(f"{number:04d}.{suffix}")
                        member.size = len(content)
                        archive.addfile(member, io.BytesIO(content))


def mnist(root: Path, data: Path) -> None:
    """The four files of MNIST, in `data` beside the script's folder, where the scripts look for them."""
    import numpy as np

    draw = np.random.default_rng(1)
    folder = root / "data" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for split, count in DIGITS.items():
        pictures = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = draw.integers(0, 10, count, dtype=np.uint8)
        header = struct.pack(">IIII", 0x803, count, 28, 28)
        (folder / f"{split}-images-idx3-ubyte").write_bytes(header + pictures.tobytes())
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels.tobytes())
    (root / "vae" / "results").mkdir(parents=True, exist_ok=True)


def lightning_mnist(root: Path, data: Path) -> None:
    """MNIST as Lightning's demonstrations store it: as many digits as the script splits."""
    import torch

    folder = root / "examples" / "Datasets" / "MNIST" / "complete"
    folder.mkdir(parents=True)
    torch.manual_seed(1)
    for name, count in (("training.pt", LIGHTNING_DIGITS), ("test.pt", 256)):
        digits = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8), torch.randint(0, 10, (count,))
        torch.save(digits, folder / name)


def text(root: Path, data: Path) -> None:
    """Lines of made-up words, a tokenizer for them, and the configuration of a tiny model."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import GPT2Config, PreTrainedTokenizerFast

    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefgh", k=5)) for _ in range(500)]
    lines = [" ".join(draw.choices(words, k=12)) for _ in range(1200)]
    (data / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    vocabulary = {word: place for place, word in enumerate(dict.fromkeys(["<unk>", "<end>", *words]))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>")
    fast.save_pretrained(data / "tokenizer")
    GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=600, n_positions=64).save_pretrained(data / "config")


def graphs(root: Path, data: Path) -> None:
    """Rings of a few nodes with labels, in the files of a TU dataset called MUTAG."""
    draw = random.Random(1)
    edges, owners, labels, nodes = [], [], [], []
    first = 1
    for graph in range(1, GRAPHS + 1):
        size = draw.randint(5, 20)
        for node in range(size):
            after = first + (node + 1) % size
            edges += [f"{first + node}, {after}", f"{after}, {first + node}"]
            owners.append(str(graph))
            nodes.append(str(draw.randint(0, 6)))
        labels.append(str(draw.choice([1, -1])))
        first += size
    folder = root / "data" / "TU" / "MUTAG" / "raw"
    folder.mkdir(parents=True)
    files = {"A": edges, "graph_indicator": owners, "graph_labels": labels, "node_labels": nodes}
    for name, lines in files.items():
        (folder / f"MUTAG_{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "README.json").write_text(json.dumps({"graphs": GRAPHS}), encoding="utf-8")
