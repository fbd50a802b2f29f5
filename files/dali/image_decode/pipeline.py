#!/usr/bin/env python3
"""Write the DALI pipeline of the model `image_decode` to a file.

Usage: pipeline.py [FILE]. The default is 1/model.dali beside this program. Run the program with the version of nvidia-dali that the
Triton image contains, or with an older version.

The decoded pictures differ from those of model_repository/image_decode, which uses Pillow, by at most 1 of 255 levels. Transparent
areas can differ more: this pipeline shows the colour below the transparency, and the model with Pillow shows white.

This pipeline does not limit the number of pixels, and a broken image fails its whole batch. So use the model with Pillow if you do
not trust the clients.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from nvidia.dali import fn, pipeline_def, types

RESIZE, CROP = 256, 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def crop_position(length: Any) -> Any:
    """Return where a centred crop starts, from 0 (first possible pixel) to 1 (last possible pixel), as DALI expects it.

    A start between two pixels is rounded to the even pixel, as in torchvision.
    """
    left_over = length - CROP
    half = left_over // 2
    # 1 if `left_over` and `half` are both odd, else 0: the start is half + 0.5, and half + 1 is the even pixel
    round_up = (left_over - half * 2) * (half - half // 2 * 2)
    return fn.cast(half + round_up, dtype=types.FLOAT) / left_over


@pipeline_def(batch_size=4, num_threads=2, device_id=None)
def decode() -> Any:
    """Return the pipeline from IMAGE, uint8 [bytes], to PIXELS, float32 [3, CROP, CROP]."""
    encoded = fn.external_source(device="cpu", name="IMAGE", dtype=types.UINT8, ndim=1)
    image = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
    sides = fn.peek_image_shape(encoded, dtype=types.INT32)[:2]
    size = sides * RESIZE // fn.reductions.min(sides)
    resized = fn.resize(image, size=fn.cast(size, dtype=types.FLOAT), interp_type=types.INTERP_TRIANGULAR, antialias=True)
    return fn.crop_mirror_normalize(
        resized,
        name="PIXELS",
        crop=(CROP, CROP),
        crop_pos_y=crop_position(size[0]),
        crop_pos_x=crop_position(size[1]),
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in STD],
        output_layout="CHW",
        dtype=types.FLOAT,
    )


def main(path: Path) -> None:
    """Write the pipeline to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    decode().serialize(filename=str(path))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "1" / "model.dali")
