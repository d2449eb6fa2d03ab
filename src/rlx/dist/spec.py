"""What a worker needs to know of a training run, as one frozen value with canonical bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

from rlx.backends import check_device
from rlx.dist.fields import all_of, check, check_int, check_text, number
from rlx.ir import Graph
from rlx.wire import Record, WireKind, decode_record, encode_record

SPEC_VERSION = 1
SPEC_LIMIT_BYTES = 1 << 30
MAX_LANES = 256
MAX_EPOCHS = 1_000_000


class WeightRef(Record, frozen=True):
    """One parameter and where its first value lies.

    `uri` is what the run's resolver takes, or `init:...` for a value made from a formula. With
    `packed`, the file holds all packed parameters of the spec back to back, in the spec's order, as
    raw little-endian values; this one lies behind the packed ones before it.
    """

    name: str
    uri: str
    packed: bool = False

    def __post_init__(self) -> None:
        check_text("a parameter's name", self.name)
        check_text(f"the uri of parameter {self.name!r}", self.uri)
        check(isinstance(self.packed, bool), f"packed of {self.name!r} is a bool")


class DataRef(Record, frozen=True):
    """The rows of one input: `elem` elements each.

    With `shard_start` and `shard_len`, the rows that this rank owns; without, all rows of the file,
    which the run divides.
    """

    input: str
    uri: str
    elem: int
    shard_start: int | None = None
    shard_len: int | None = None

    def __post_init__(self) -> None:
        check_text("an input's name", self.input)
        check_text(f"the uri of input {self.input!r}", self.uri)
        check_int(f"elem of input {self.input!r}", self.elem, least=1)
        whole = (self.shard_start is None) == (self.shard_len is None)
        check(whole, f"input {self.input!r}: a shard has both shard_start and shard_len")
        if self.shard_start is not None:
            check_int(f"shard_start of input {self.input!r}", self.shard_start)
            check_int(f"shard_len of input {self.input!r}", self.shard_len)

    @property
    def has_shard(self) -> bool:
        """Whether this rank's rows are given by hand."""
        return self.shard_start is not None


class Sgd(Record, frozen=True, tag="sgd"):
    """Stochastic gradient descent: p -= lr * v, with v = momentum * v + gradient."""


class Adam(Record, frozen=True, tag="adam"):
    """Adam (Kingma and Ba, 2015, algorithm 1)."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _check_adam(self, self.beta1, self.beta2, self.epsilon)


class AdamW(Record, frozen=True, tag="adamw"):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): p -= lr * decay * p first."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _check_adam(self, self.beta1, self.beta2, self.epsilon)
        self._normalise("weight_decay", number("weight_decay", self.weight_decay))


Optimizer: TypeAlias = Sgd | Adam | AdamW


class TrainSpec(Record, frozen=True):
    """A training run: the graph with its gradients, the first parameters, the rows, the steps.

    Frozen; checked when it is made, by hand or off the wire alike. Raises `UsageError`.

    Parameters
    ----------
    graph
        Its output `loss_index` is the loss of a microbatch (a float without axes); from
        `grad_start` on stand the gradients of `params`, in that order, as `grad_with_loss` gives
        them.
    params, data
        A reference for each parameter of the graph, and for each input but `seed_input` and the key
        of dropout.
    lr_per_epoch
        The learning rate of each epoch; its length is the number of epochs.
    batch
        Rows in a microbatch. Axis 0 of every input is the batch: one name, or this number.
    weight_index
        The output that is a microbatch's weight, a number without axes, in place of its rows.
    seed_input
        The input that takes the cotangent of the loss; the run gives it 1.
    momentum
        For `Sgd` alone.
    global_batch
        Rows in a step, where the data has no shards; `batch` for None.
    shuffle_seed
        None keeps the rows in order; else 0 <= seed < 2**64.
    lanes
        Threads of a rank that share its microbatches. They change no bit.
    grad_group
        A number that is part of the gradient collective's name, for runs that share ranks.
    push_data
        The coordinator reads all files and sends rows and first parameters to the others.
    dropout_seed
        0 <= seed < 2**63. With the step and the microbatch, counted over all ranks, it says which
        elements `Graph.dropout` drops.
    backend
        What computes: "numpy", or "jax", whose results agree within a tolerance and not to the bit.
    device
        What the backend computes on: "cpu", or for jax also "gpu".
    strict
        Ranks whose machines or libraries may round differently refuse to start, instead of warning.
    """

    graph: Graph
    params: Sequence[WeightRef]
    data: Sequence[DataRef]
    lr_per_epoch: Sequence[float]
    batch: int
    grad_start: int = 1
    loss_index: int = 0
    weight_index: int | None = None
    seed_input: str = "d_output"
    momentum: float = 0.0
    optimizer: Optimizer = Sgd()
    global_batch: int | None = None
    shuffle_seed: int | None = None
    device: str = "cpu"
    lanes: int = 1
    grad_group: int = 0
    push_data: bool = False
    dropout_seed: int = 0
    backend: str = "numpy"
    strict: bool = False

    def __post_init__(self) -> None:
        from rlx.dist.spec_checks import check_against_graph

        self._check_fields()
        check_against_graph(self)

    @property
    def epochs(self) -> int:
        """How many times every row is used."""
        return len(self.lr_per_epoch)

    @property
    def has_shards(self) -> bool:
        """Whether each rank's rows are given by hand."""
        return self.data[0].has_shard

    @property
    def step_rows(self) -> int:
        """Rows in a full step of a run without shards."""
        return self.batch if self.global_batch is None else self.global_batch

    def to_bytes(self) -> bytes:
        """The canonical encoding."""
        return encode_record(self, WireKind.TRAIN_SPEC, SPEC_VERSION)

    @staticmethod
    def from_bytes(data: bytes) -> TrainSpec:
        """The spec that `data` encodes; bytes that are not exactly that are a `WireError`."""
        return decode_record(
            data, TrainSpec, WireKind.TRAIN_SPEC, SPEC_VERSION, limit_bytes=SPEC_LIMIT_BYTES
        )

    def digest(self) -> str:
        """SHA-256 (hex) of the canonical encoding."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def _check_fields(self) -> None:
        check(isinstance(self.graph, Graph), f"graph is a Graph; got {type(self.graph).__name__}")
        self._normalise("params", all_of("params", self.params, WeightRef))
        self._normalise("data", all_of("data", self.data, DataRef))
        rates = tuple(number("lr_per_epoch", rate) for rate in _listed("lr_per_epoch", self))
        check(0 < len(rates) <= MAX_EPOCHS, f"lr_per_epoch has 1 to {MAX_EPOCHS} rates")
        self._normalise("lr_per_epoch", rates)
        check_int("batch", self.batch, least=1)
        check_int("grad_start", self.grad_start)
        check_int("loss_index", self.loss_index)
        if self.weight_index is not None:
            check_int("weight_index", self.weight_index)
        check_text("seed_input", self.seed_input)
        self._normalise("momentum", number("momentum", self.momentum))
        check(self.momentum < 1, f"momentum is below 1; got {self.momentum}")
        check(isinstance(self.optimizer, Sgd | Adam | AdamW), "optimizer is Sgd, Adam or AdamW")
        plain = self.momentum == 0 or isinstance(self.optimizer, Sgd)
        check(plain, "momentum is for Sgd; Adam and AdamW have beta1")
        if self.global_batch is not None:
            check_int("global_batch", self.global_batch, least=1)
        if self.shuffle_seed is not None:
            check_int("shuffle_seed", self.shuffle_seed, most=2**64 - 1)
        check_device(self.device, self.backend)
        check(isinstance(self.strict, bool), "strict is a bool")
        check_int("lanes", self.lanes, least=1, most=MAX_LANES)
        check_int("grad_group", self.grad_group, most=2**31 - 1)
        check(isinstance(self.push_data, bool), "push_data is a bool")
        check_int("dropout_seed", self.dropout_seed, most=2**63 - 1)


def _check_adam(record: Any, beta1: Any, beta2: Any, epsilon: Any) -> None:
    for name, value in (("beta1", beta1), ("beta2", beta2)):
        record._normalise(name, number(name, value))
        check(value < 1, f"{name} is below 1; got {value!r}")
    record._normalise("epsilon", number("epsilon", epsilon))
    check(epsilon > 0, f"epsilon is above 0; got {epsilon!r}")


def _listed(what: str, spec: TrainSpec) -> Sequence[Any]:
    check(isinstance(spec.lr_per_epoch, list | tuple), f"{what} is a list of numbers")
    return spec.lr_per_epoch
