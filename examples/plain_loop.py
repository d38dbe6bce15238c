"""A plain PyTorch loop: train as ever, then teach the head. Ten seconds on one core: `python examples/plain_loop.py`."""

import calattn  # before timm and torchvision
import torch
from digits import TEST, TRAIN, VALIDATION, transform
from torch.utils.data import DataLoader


def loader(rows: list, shuffle: bool = False) -> DataLoader:
    return DataLoader([(transform(image), label) for image, label in rows], batch_size=50, shuffle=shuffle)


torch.manual_seed(0)
network = calattn.backbones.create("vit_micro_patch2_8", num_classes=10, in_chans=1)  # or any classifier of yours
optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.05)
batches = loader(TRAIN, shuffle=True)
for epoch in range(12):
    for images, labels in batches:
        loss = torch.nn.functional.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

lesson = calattn.heads.Lesson(readings=1000, shifted=250, steps=200)  # only for this example: leave it out
model = calattn.teach(network, TRAIN, VALIDATION, transform, lesson=lesson)

for name, predictor in {"as trained": network, "calattn": model}.items():
    found = calattn.evaluate(calattn.predict(predictor, loader(TEST)), metrics=["accuracy", "nll", "ece"])
    print(f"{name}: " + ", ".join(f"{metric} {row.value:.3f}" for metric, row in found.items()))
