#!/usr/bin/env python3
"""Write files/golden/digits: held-out images in blocks of the digits 0 to 9, and the scores that the model gives them.

The model, and models from other seeds, recognize each of these images by a clear margin. So a failed check means a faulty
server and not a difficult image. The labels of the images are in files/checks/*.yml.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from digits import SEED, fit, predict, split

GOLDEN = Path(__file__).resolve().parents[2] / "files/golden/digits"
BLOCKS = 9  # Number of blocks of the digits 0 to 9
MARGIN = 0.3  # Least difference between the two highest scores of an image


def main() -> None:
    """Choose the images, and write them and their scores."""
    train, held_out, train_labels, labels = split()
    clear = np.ones(len(labels), bool)
    for seed in (SEED, 1, 2, 3):
        scores = predict(fit(train, train_labels, seed), held_out)
        best = np.sort(scores, axis=1)
        clear &= (scores.argmax(1) == labels) & (best[:, -1] - best[:, -2] > MARGIN)
    rows = [np.flatnonzero(clear & (labels == digit))[block] for block in range(BLOCKS) for digit in range(10)]
    images = held_out[rows]
    GOLDEN.mkdir(parents=True, exist_ok=True)
    np.save(GOLDEN / "images.npy", images)
    np.save(GOLDEN / "scores.npy", predict(fit(train, train_labels), images).astype(np.float32))
    print(f"{len(images)} images, labels {labels[rows].tolist()}")


if __name__ == "__main__":
    main()
