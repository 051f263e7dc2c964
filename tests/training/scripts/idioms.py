"""Ways to train that real scripts have: each a small model whose result follows from the mini-batches alone.

All ranks see the same data, so that the number of workers does not matter, and one process without Horovod
(`trained`) computes the same, up to rounding.
"""

import hashlib
import json
import math

import torch

FEATURES = 4


def data(batch):
    generator = torch.Generator().manual_seed(batch)
    inputs = torch.randn(8, FEATURES, generator=generator)
    return inputs, inputs.sum(1, keepdim=True) + 0.1 * torch.randn(8, 1, generator=generator)


class Idiom:
    """One model with SGD and momentum; a step every mini-batch."""

    passes = 1
    groups = None

    def __init__(self, name, hvd):
        self.name = name
        torch.manual_seed(1 if hvd is None else 1 + hvd.rank() + hvd.size())  # the state makes it the same
        self.model = torch.nn.Linear(FEATURES, 1)
        with torch.no_grad():
            if hvd is None or hvd.rank() == 0:
                self.model.weight.fill_(0.5)
                self.model.bias.fill_(-0.5)
        self.plain = self.make_optimizer()
        self.before_wrapping()
        self.optimizer = self.plain
        if hvd is not None:
            self.optimizer = hvd.DistributedOptimizer(
                self.plain,
                named_parameters=[(f"{name}.{key}", value) for key, value in self.model.named_parameters()],
                backward_passes_per_step=self.passes,
                groups=self.groups,
            )
        self.after_wrapping()

    def make_optimizer(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.5)

    def before_wrapping(self):
        pass

    def after_wrapping(self):
        pass

    def state(self):
        return {f"{self.name}_model": self.model, f"{self.name}_optimizer": self.optimizer}

    def loss(self, batch):
        inputs, targets = data(batch)
        return (self.model(inputs) - targets).square().mean()

    def train(self, batch, state):
        self.optimizer.zero_grad()
        self.loss(batch).backward()
        self.optimizer.step()

    def facts(self, state):
        """Numbers that are to be the same everywhere."""
        group = self.optimizer.param_groups[0]
        numbers = [group["lr"], *self.model.weight.flatten().tolist(), self.model.bias.item()]
        for kept in self.optimizer.state.values():
            for value in kept.values():
                if torch.is_tensor(value):
                    numbers += value.flatten().tolist()
        return numbers


class Accumulation(Idiom):
    """Two passes a step, and a commit after each of them. Gradients are cleared after the step only."""

    passes = 2

    def train(self, batch, state):
        self.loss(batch).backward()
        if (batch + 1) % self.passes == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


class AccumulationInGroups(Accumulation):
    passes = 3
    groups = 1


class Clipping(Idiom):
    def train(self, batch, state):
        self.optimizer.zero_grad()
        (10 * self.loss(batch)).backward()
        if self.optimizer is self.plain:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.step()
            return
        self.optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        with self.optimizer.skip_synchronize():
            self.optimizer.step()


class Adam(Idiom):
    def make_optimizer(self):
        return torch.optim.AdamW(self.model.parameters(), lr=0.01)


class MixedPrecision(Idiom):
    """Autocast and a gradient scaler whose scale grows; every seventh mini-batch overflows."""

    inside = False

    def after_wrapping(self):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=3)

    def state(self):
        return super().state() | ({f"{self.name}_scaler": self.scaler} if self.inside else {})

    def train(self, batch, state):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = self.loss(batch)
        self.scaler.scale(loss * (math.inf if batch % 7 == 6 else 1.0)).backward()
        if self.optimizer is self.plain:
            self.scaler.step(self.optimizer)
        else:
            self.optimizer.synchronize()
            self.scaler.unscale_(self.optimizer)
            with self.optimizer.skip_synchronize():
                self.scaler.step(self.optimizer)
        self.scaler.update()

    def facts(self, state):
        return [self.scaler.get_scale(), *super().facts(state)]


class MixedPrecisionInside(MixedPrecision):
    inside = True


class Averaged(Idiom):
    """PyTorch's moving average of the weights, and one by hand."""

    def after_wrapping(self):
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        self.average = torch.optim.swa_utils.AveragedModel(self.model, multi_avg_fn=average)

    def state(self):
        shadow = {key: value.detach().clone() for key, value in self.model.named_parameters()}
        return super().state() | {f"{self.name}_average": self.average, f"{self.name}_shadow": shadow}

    def train(self, batch, state):
        super().train(batch, state)
        self.average.update_parameters(self.model)
        for key, value in self.model.named_parameters():
            getattr(state, f"{self.name}_shadow")[key].mul_(0.8).add_(value.detach(), alpha=0.2)

    def facts(self, state):
        averages = [*getattr(state, f"{self.name}_shadow").values(), *self.average.parameters()]
        numbers = [each for value in averages for each in value.flatten().tolist()]
        return [*super().facts(state), *numbers, int(self.average.n_averaged)]


class SyncedNormalization(Idiom):
    """Horovod's SyncBatchNorm, whose own kernels are for GPUs: here with the same exchange on CPUs."""

    def before_wrapping(self):
        self.normalize = torch.nn.BatchNorm1d(FEATURES, affine=False)

    def __init__(self, name, hvd):
        super().__init__(name, hvd)
        if hvd is None:
            return

        class OnCpus(hvd.SyncBatchNorm):
            def forward(self, inputs):
                if not self.training:
                    return self._run_bn(inputs)
                mean = hvd.allreduce(inputs.mean(0), name="mean")
                square = hvd.allreduce(inputs.square().mean(0), name="square")
                variance = square - mean.square()
                samples = len(inputs)  # all ranks see the same ones
                with torch.no_grad():
                    self.running_mean.lerp_(mean, self.momentum)
                    self.running_var.lerp_(variance * samples / (samples - 1), self.momentum)
                return (inputs - mean) / (variance + self.eps).sqrt()

        self.normalize = OnCpus(FEATURES, affine=False)

    def state(self):
        return super().state() | {f"{self.name}_normalize": self.normalize}

    def loss(self, batch):
        inputs, targets = data(batch)
        return (self.model(self.normalize(inputs)) - targets).square().mean()

    def facts(self, state):
        running = self.normalize.running_mean, self.normalize.running_var
        return [*super().facts(state), *(each for value in running for each in value.tolist())]


def cosine(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)


def one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=100_000, pct_start=0.001)


def lambda_rate(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))


def multi_step(optimizer):
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[5, 11, 23, 47, 95, 191], gamma=0.9)


def plateau(optimizer):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.9, patience=2)


def warm_up_then_steps(optimizer):
    schedulers = torch.optim.lr_scheduler
    first = schedulers.LinearLR(optimizer, 0.1, total_iters=12)
    return schedulers.SequentialLR(optimizer, [first, schedulers.StepLR(optimizer, 5, 0.95)], milestones=[12])


class Scheduled(Idiom):
    """With a scheduler: in the state or beside it, made of Horovod's optimizer or of the one beneath."""

    inside = False
    early = False
    schedule = None

    def before_wrapping(self):
        if self.early:
            self.scheduler = type(self).schedule(self.plain)

    def after_wrapping(self):
        if not self.early:
            self.scheduler = type(self).schedule(self.optimizer)

    def state(self):
        return super().state() | ({f"{self.name}_scheduler": self.scheduler} if self.inside else {})

    def train(self, batch, state):
        super().train(batch, state)
        if type(self.scheduler).__name__ == "ReduceLROnPlateau":
            self.scheduler.step(abs(math.sin(batch)))
        else:
            self.scheduler.step()

    def facts(self, state):
        return [self.scheduler.last_epoch, *super().facts(state)]


SCHEDULES = {
    "cosine": cosine,
    "one_cycle": one_cycle,
    "lambda_rate": lambda_rate,
    "multi_step": multi_step,
    "plateau": plateau,
    "sequence": warm_up_then_steps,
}
IDIOMS = {
    "accumulation": Accumulation,
    "groups": AccumulationInGroups,
    "clipping": Clipping,
    "adam": Adam,
    "scaler": MixedPrecision,
    "scaler_inside": MixedPrecisionInside,
    "averaged": Averaged,
    "normalization": SyncedNormalization,
} | {
    f"{name}{'_inside' * inside}": type(
        "Scheduled",
        (Scheduled,),
        {"inside": inside, "early": inside == number % 2, "schedule": staticmethod(schedule)},
    )
    for number, (name, schedule) in enumerate(SCHEDULES.items())
    for inside in (False, True)
}


def make(names, hvd):
    return [IDIOMS[name](name, hvd) for name in names]


def all_facts(idioms, state):
    return {idiom.name: idiom.facts(state) for idiom in idioms}


def digest(facts):
    """Bit for bit."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def trained(names, batches):
    """What one process without Horovod has after each mini-batch."""
    import types

    idioms = make(names, None)
    state = types.SimpleNamespace(**{key: value for idiom in idioms for key, value in idiom.state().items()})
    for batch in range(batches):
        for idiom in idioms:
            idiom.train(batch, state)
        yield all_facts(idioms, state)
