"""In the style of timm's train.py: mixup, EMA, its optimisers and schedules. Then a head for the EMA weights.

Fifteen seconds on one core: `python examples/timm_train.py`. For a network that is trained already there is
`calattn teach BACKBONE --weights FILE.safetensors --data imagefolder:PATH`.
"""

import calattn  # before timm: beside a CPU-only torch, timm fails to import on its own
import timm
from digits import TEST, TRAIN, VALIDATION, transform
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, ModelEmaV3
from torch.utils.data import DataLoader

EPOCHS = 12


def loader(rows: list, shuffle: bool = False) -> DataLoader:
    return DataLoader([(transform(image), label) for image, label in rows], batch_size=50, shuffle=shuffle)


timm.utils.random_seed(0)
network = timm.create_model("test_vit", num_classes=10, in_chans=1, img_size=8, patch_size=2, depth=4)  # or yours
model = calattn.attach(network, head="taught")  # timm's functions take it as they take the network
optimizer = create_optimizer_v2(model, opt="adamw", lr=3e-3, weight_decay=0.05, layer_decay=0.95)
batches = loader(TRAIN, shuffle=True)
scheduler, _ = create_scheduler_v2(
    optimizer, sched="cosine", num_epochs=EPOCHS, warmup_epochs=2, updates_per_epoch=len(batches), step_on_epochs=False
)
ema = ModelEmaV3(model, decay=0.95)
mixup, criterion = Mixup(mixup_alpha=0.1, num_classes=10), SoftTargetCrossEntropy()

updates = 0
for epoch in range(EPOCHS):
    losses = AverageMeter()
    for images, labels in batches:
        images, targets = mixup(images, labels)
        loss = criterion(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        updates += 1
        ema.update(model, step=updates)
        scheduler.step_update(updates)
        losses.update(loss.item(), len(images))
    print(f"epoch {epoch + 1}: loss {losses.avg:.3f}")

lesson = calattn.heads.Lesson(readings=1000, shifted=250, steps=200)  # only for this example: leave it out
taught = calattn.teach(ema.module, TRAIN, VALIDATION, transform, lesson=lesson)

for name, predictor in {"as trained": ema.module, "calattn": taught}.items():
    found = calattn.evaluate(calattn.predict(predictor, loader(TEST)), metrics=["accuracy", "nll", "ece"])
    print(f"{name}: " + ", ".join(f"{metric} {row.value:.3f}" for metric, row in found.items()))
