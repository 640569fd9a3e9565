"""Images as bytes on the device, and scaled, shifted and mirrored batches of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens_papers.vision.images import LabelledImages
from marginlens_papers.vision.settings import VisionSettings


class DevicePixels:
    """All images of a set as bytes on one device, from which batches are taken without asking the processor."""

    def __init__(self, data: LabelledImages, settings: VisionSettings, device: Any) -> None:
        import torch

        self.settings, self.device = settings, device
        self.x_train, self.x_test = (
            torch.from_numpy(x).permute(0, 3, 1, 2).contiguous().to(device) for x in (data.x_train, data.x_test)
        )
        self.y_train, self.y_test = (torch.from_numpy(y).long().to(device) for y in (data.y_train, data.y_test))
        mean, spread = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in data.channel_statistics())
        self.factor, self.shift = 1.0 / (255.0 * spread), -mean / spread
        self._rng = torch.Generator(device=device)

    def order(self, epoch: int) -> Any:
        """The order of the training images in an epoch."""
        import torch

        return torch.randperm(len(self.x_train), generator=self._seeded(epoch, 0), device=self.device)

    def training(self, chosen: Any, epoch: int, step: int) -> tuple[Any, Any]:
        """Scaled pixels (batch, channels, height, width) and labels of the chosen training images, shifted and mirrored at random."""
        pixels = self.scaled(self.x_train[chosen])
        if self.settings.crop or self.settings.flip:
            pixels = self._altered(pixels, self._seeded(epoch, step + 1))
        return pixels, self.y_train[chosen]

    def scaled(self, images: Any) -> Any:
        """Bytes as numbers of mean 0 and variance 1 in each channel, over the training images."""
        return images.float() * self.factor + self.shift

    def _altered(self, pixels: Any, rng: Any) -> Any:
        import torch

        n, channels, height, width = pixels.shape
        crop, device = self.settings.crop, self.device
        rows = torch.arange(height, device=device).expand(n, height)
        columns = torch.arange(width, device=device).expand(n, width)
        if self.settings.flip:
            mirrored = torch.rand(n, 1, generator=rng, device=device) < 0.5
            columns = torch.where(mirrored, width - 1 - columns, columns)
        if crop:
            pixels = torch.nn.functional.pad(pixels, (crop, crop, crop, crop))  # 0 is the mean colour
            moved = torch.randint(0, 2 * crop + 1, (n, 2, 1), generator=rng, device=device)
            rows, columns = rows + moved[:, 0], columns + moved[:, 1]
        taken = torch.arange(n, device=device)[:, None, None, None]
        every = torch.arange(channels, device=device)[None, :, None, None]
        return pixels[taken, every, rows[:, None, :, None], columns[:, None, None, :]]

    def _seeded(self, epoch: int, step: int) -> Any:
        """The generator for one step, whatever came before: a run can resume at any step."""
        drawn = np.random.SeedSequence((self.settings.seed, epoch, step)).generate_state(1, np.uint64)[0]
        self._rng.manual_seed(int(drawn >> np.uint64(1)))
        return self._rng
