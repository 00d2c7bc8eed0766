"""Trainers of other libraries on several workers; each worker prints a line of JSON with its result.

trainer_script.py lightning|transformers [KILL]: worker 0 kills itself before step KILL in the first launch.
"""

import hashlib
import json
import os
import signal
import sys
import warnings

import mpips

mpips.init(timeout_s=60, verbose=False)
warnings.simplefilter("ignore")

import torch  # noqa: E402

kind, kill = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else -1
first = os.environ.get("MPIPS_GENERATION", "0") == "0"
n = mpips.world_size()
x = torch.randn(48, 4, generator=torch.Generator().manual_seed(5))
y = x.sum(1)
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
found = {"worker": mpips.rank(), "steps": []}


def note(step: int) -> None:
    """Note a step that begins."""
    if first and step == kill and mpips.rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    found["steps"].append(step)


def train_with_lightning() -> None:
    """Let Lightning train."""
    import lightning as L

    from mpips.torch.lightning import ParameterServerStrategy

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch, i):
            note(self.global_step)
            loss = (self.net(batch[0])[:, 0] - batch[1]).square().mean()
            self.log("train", loss, on_step=False, on_epoch=True, sync_dist=True)
            return loss

        def validation_step(self, batch, i):
            self.log("val", (self.net(batch[0])[:, 0] - batch[1]).square().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)

    data = torch.utils.data.TensorDataset(x, y)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        strategy=ParameterServerStrategy(),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    loader = torch.utils.data.DataLoader(data, 12 // n, shuffle=True)
    trainer.fit(module, loader, torch.utils.data.DataLoader(data, 48))
    found["val"] = trainer.callback_metrics["val"].item()
    found["train"] = trainer.callback_metrics["train"].item()
    folder = trainer.log_dir  # collective
    found["files"] = len(os.listdir(folder)) if trainer.is_global_zero else 0
    workers = trainer.strategy.all_gather(torch.tensor(mpips.rank()))
    found["workers"] = [*workers.tolist(), trainer.strategy.broadcast(mpips.rank(), 1 % n)]


def train_with_transformers() -> None:
    """Let transformers train."""
    from transformers import PrinterCallback, TrainerCallback, TrainingArguments

    from mpips.torch.transformers import ParameterServerTrainer

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x, labels):
            found = self.net(x)[:, 0]
            return (found - labels).square().mean(), found

    class Steps(TrainerCallback):
        def on_step_begin(self, args, state, control, **named):
            note(state.global_step)

    data = [{"x": one, "labels": one.sum().item()} for one in x]
    args = TrainingArguments(
        output_dir="out",
        num_train_epochs=3,
        per_device_train_batch_size=6 // n,
        gradient_accumulation_steps=2,
        learning_rate=0.05,
        max_grad_norm=0.0,  # workers would clip before their gradients are averaged
        optim="sgd",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        eval_strategy="epoch",
        save_strategy="epoch",
    )
    trainer = ParameterServerTrainer(
        Model(), args, train_dataset=data, eval_dataset=data, callbacks=[Steps()]
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    found["val"] = trainer.evaluate()["eval_loss"]
    found["zero"] = trainer.is_world_process_zero()


train_with_lightning() if kind == "lightning" else train_with_transformers()
digest = hashlib.sha256()
for name, value in net.state_dict().items():
    digest.update(name.encode() + value.numpy().tobytes())
found["digest"] = digest.hexdigest()
# One write, so that lines of ranks do not mix.
os.write(1, (json.dumps(found) + "\n").encode())
