"""Albumentations on images that OpenCV reads."""

import tempfile
from pathlib import Path

import albumentations
import cv2
import numpy as np
from albumentations.pytorch import ToTensorV2
from torch import Tensor, nn, optim
from torch.utils.data import Dataset

import stoker

FOLDER = Path(tempfile.gettempdir(), "stoker-examples", "opencv")


class Images(Dataset):
    def __init__(self) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for number in range(32):
            noise = np.random.default_rng(number).integers(0, 255, (64, 64, 3), np.uint8)
            cv2.imwrite(str(FOLDER / f"{number}.jpg"), noise)
        self.paths = sorted(FOLDER.glob("*.jpg"))
        # Planted: images of 64 × 64 are enlarged to 512 × 512 and then bent.
        bend = albumentations.ElasticTransform(p=1.0)
        self.augment = albumentations.Compose([albumentations.Resize(512, 512), bend, ToTensorV2()])

    def __len__(self) -> int:
        return 8 * len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = cv2.imread(str(self.paths[index % len(self.paths)]))
        return self.augment(image=image)["image"][:, ::16, ::16].float(), index % 2


def workload() -> stoker.Workload:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2))
    return stoker.Workload(model=model, dataset=Images, loss=nn.CrossEntropyLoss(), optimizer=optim.SGD)
