"""What the launcher's environment says: which rank this process is, of how many, and where they
meet.

Pure functions over a mapping, which the caller hands in (`os.environ`). Nothing is looked up,
opened or started, and nothing is guessed: only a complete set of variables makes a place, because
N processes that each take themselves for the only one would train N times, side by side.

Sets, in the order in which they are asked. The innermost launcher wins: whoever starts ranks by
hand or by mpirun inside a Slurm job means those ranks, while Slurm's variables are inherited.

| launcher | rank                   | world size                                               |
|----------|------------------------|----------------------------------------------------------|
| rlx      | RLX_RANK               | RLX_WORLD_SIZE, with RLX_COORDINATOR                     |
| openmpi  | OMPI_COMM_WORLD_RANK   | OMPI_COMM_WORLD_SIZE                                     |
| pmi      | PMI_RANK               | PMI_SIZE                                                 |
| pmix     | PMIX_RANK              | the Slurm step's (PMIx has no variable for the size)     |
| slurm    | SLURM_PROCID, in a step| the first that is there of SLURM_STEP_NUM_TASKS,         |
|          |                        | SLURM_NTASKS, SLURM_STEP_TASKS_PER_NODE, the product of  |
|          |                        | SLURM_NNODES and SLURM_NTASKS_PER_NODE,                  |
|          |                        | SLURM_TASKS_PER_NODE                                     |

RLX_TOKEN_FILE and RLX_COORDINATOR complete the place of every launcher. A variable that is set to
nothing counts as not set.

A Slurm script is not a rank. `sbatch` runs its script, and `salloc` its shell, with SLURM_PROCID=0
and often SLURM_NTASKS=N, though only one process runs. What tells is SLURM_STEP_ID: srun gives it
to every task; a batch script has none, and the shell of `salloc` (where Slurm runs it as an
interactive step) has a number above 0xfffffff0, which Slurm keeps for steps that are not srun's.
Where something on the way has removed SLURM_STEP_ID, SLURM_STEP_NUM_TASKS tells as well (a batch
script has none either), and so does a SLURM_PROCID above 0, for a script's is always 0.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn, TypeAlias

from rlx.errors import ConfigError
from rlx.net.addresses import is_literal

Launcher: TypeAlias = Literal["rlx", "openmpi", "pmi", "pmix", "slurm"]

MAX_NODES = 1 << 20
"""More nodes in one variable than any machine has are a mistake; they are not written out."""

SLURM_FIRST_PORT = 12288
SLURM_PORTS = 16384
"""The ports of Slurm jobs end below 32768, where Linux begins to hand out ports by itself."""

_SLURM_STEPS_PER_JOB = 16
_SLURM_FIRST_RESERVED_STEP = 0xFFFFFFF0

_INTEGER = re.compile(r"[0-9]{1,18}")
_STEP = re.compile(r"-?[0-9]{1,18}")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_TASKS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_HOSTS = re.compile(r"(?:[A-Za-z0-9_.-]|\[[^\[\]]*\])+")
_HOST_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_NUMBERS = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a launcher put this process: `rank` of `world_size`, 0 <= rank < world_size.

    `coordinator` is (host, port) of rank 0's meeting point, or None where the launcher does not
    say; `token_file` is the path of the job's token, unread; `local_rank` counts the ranks of this
    host, where the launcher says.
    """

    rank: int
    world_size: int
    launcher: Launcher
    coordinator: tuple[str, int] | None = None
    token_file: str | None = None
    local_rank: int | None = None


def find_place(environ: Mapping[str, str]) -> Place | None:
    """The place that the environment gives this process; None if no launcher started it.

    Raises `ConfigError`, in one line with the variable and its value, if a value is malformed, if
    the rank is not below the world size, if some but not all RLX_ variables of a rank are there, or
    if this is a Slurm step of unknown size.
    """
    environ = {name: value for name, value in environ.items() if value}
    for find in (_find_rlx, _find_openmpi, _find_pmi, _find_slurm):
        place = find(environ)
        if place is not None:
            return place
    if "RLX_COORDINATOR" in environ:
        _refuse_partial("RLX_COORDINATOR", ["RLX_RANK", "RLX_WORLD_SIZE"])
    return None


def parse_address(text: str, *, name: str = "address") -> tuple[str, int]:
    """(host, port) of "host:port" or "[IPv6 address]:port"; port 0 means any free one.

    The host stays as it is written: no look-up, in either direction. `name` is what errors call the
    text, such as the variable that it came from. Raises `ConfigError`.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        _refuse(name, text, "expected host:port")
    if host.startswith("["):
        host = _bracketed(name, text, host)
    elif ":" in host:
        _refuse(name, text, "expected host:port; an IPv6 address goes in brackets: [::1]:29400")
    elif not _NAME.fullmatch(host):
        _refuse(name, text, "expected host:port, where host is a name or an IP address and no more")
    if not _INTEGER.fullmatch(port) or int(port) > 65535:
        _refuse(name, text, "the port is a number from 0 to 65535")
    return host, int(port)


def parse_tasks_per_node(text: str, *, name: str = "SLURM_TASKS_PER_NODE") -> list[int]:
    """Tasks on each node, from Slurm's short form: "2(x3),1" is [2, 2, 2, 1].

    Raises `ConfigError`.
    """
    nodes: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part)
        if match is None:
            _refuse(name, text, "expected counts such as 2(x3),1")
        repeats = int(match[2] or 1)
        if len(nodes) + repeats > MAX_NODES:
            _refuse(name, text, f"more than {MAX_NODES} nodes")
        nodes.extend([int(match[1])] * repeats)
    return nodes


def parse_nodelist(text: str, *, name: str = "SLURM_NODELIST") -> list[str]:
    """Host names, in order, from Slurm's short form: "n[01-02,7],b" is n01, n02, n7, b.

    A range keeps the width of its first number. Of several brackets in one name the last runs
    fastest. Raises `ConfigError`.
    """
    hosts: list[str] = []
    for word in _split_outside_brackets(text):
        if not _HOSTS.fullmatch(word):
            _refuse(name, text, "expected host names such as n[01-03,7],b")
        choices = [_choices(name, text, *part.groups()) for part in _HOST_PART.finditer(word)]
        combinations = itertools.product(*choices)
        room = MAX_NODES - len(hosts)
        hosts.extend("".join(chosen) for chosen in itertools.islice(combinations, room))
        if next(combinations, None) is not None:
            _refuse(name, text, f"more than {MAX_NODES} hosts")
    return hosts


def slurm_port(job_id: int, step_id: int) -> int:
    """The port at which the ranks of one Slurm step meet, which each can work out by itself.

    12288 + (16 * job id + step id) mod 16384: jobs that run side by side have job ids near each
    other, so that they get different ports; so do the first 16 steps of one job.
    """
    return SLURM_FIRST_PORT + (_SLURM_STEPS_PER_JOB * job_id + step_id) % SLURM_PORTS


@dataclass(frozen=True, slots=True)
class _Said:
    """A number, and the words to show for it in an error."""

    number: int
    shown: str


@dataclass(frozen=True, slots=True)
class _Step:
    """A Slurm step that srun started: this task's number, and how many there are."""

    rank: _Said
    world_size: _Said
    coordinator: tuple[str, int] | None


def _find_rlx(environ: Mapping[str, str]) -> Place | None:
    needed = ("RLX_RANK", "RLX_WORLD_SIZE", "RLX_COORDINATOR")
    present = [name for name in needed[:2] if name in environ]
    missing = [name for name in needed if name not in environ]
    if not present:
        return None
    if missing:
        _refuse_partial(present[0], missing)
    rank, world_size = _said(environ, "RLX_RANK"), _said(environ, "RLX_WORLD_SIZE")
    return _place("rlx", environ, rank, world_size)


def _find_openmpi(environ: Mapping[str, str]) -> Place | None:
    """mpirun. It gives no coordinator, even inside Slurm: on the host where mpirun itself runs and
    on the others, the variables of Slurm that the ranks inherit name different hosts."""
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if not all(name in environ for name in names):
        return None
    rank, world_size = (_said(environ, name) for name in names)
    return _place("openmpi", environ, rank, world_size, local="OMPI_COMM_WORLD_LOCAL_RANK")


def _find_pmi(environ: Mapping[str, str]) -> Place | None:
    """MPICH's and Intel's mpiexec, and srun --mpi=pmi2."""
    if "PMI_RANK" not in environ or "PMI_SIZE" not in environ:
        return None
    rank, world_size = _said(environ, "PMI_RANK"), _said(environ, "PMI_SIZE")
    if world_size.number == 1 and _is_script(environ):
        return None  # salloc's shell: PMI names it rank 0 of 1, and it may still start ranks.
    step = _find_step(environ)
    # An mpiexec that starts its helpers by srun leaves each helper's SLURM_PROCID to the ranks.
    ours = (rank.number, world_size.number)
    if step is not None and (step.rank.number, step.world_size.number) == ours:
        return _place("pmi", environ, rank, world_size, step.coordinator, local="SLURM_LOCALID")
    return _place("pmi", environ, rank, world_size, local="MPI_LOCALRANKID")


def _find_slurm(environ: Mapping[str, str]) -> Place | None:
    """srun, and srun --mpi=pmix."""
    step = _find_step(environ)
    if step is None:
        return None
    launcher: Launcher = "slurm"
    if "PMIX_RANK" in environ:
        rank = _said(environ, "PMIX_RANK")
        if rank.number != step.rank.number:
            raise ConfigError(
                f"{rank.shown}, but {step.rank.shown}: these ranks are not the tasks of srun, and "
                f"their launcher does not say how many they are; start them with mpirun or srun"
            )
        launcher = "pmix"
    return _place(
        launcher, environ, step.rank, step.world_size, step.coordinator, local="SLURM_LOCALID"
    )


def _find_step(environ: Mapping[str, str]) -> _Step | None:
    if "SLURM_PROCID" not in environ or _is_script(environ):
        return None
    return _Step(_said(environ, "SLURM_PROCID"), _step_size(environ), _step_coordinator(environ))


def _is_script(environ: Mapping[str, str]) -> bool:
    """Whether this is Slurm's, but a script or shell and no task of srun; see the file's top."""
    step_id = _step_id(environ)
    if step_id is not None:
        return not 0 <= step_id < _SLURM_FIRST_RESERVED_STEP
    if "SLURM_PROCID" not in environ or "SLURM_STEP_NUM_TASKS" in environ:
        return False
    return _said(environ, "SLURM_PROCID").number == 0


def _step_id(environ: Mapping[str, str]) -> int | None:
    for name in ("SLURM_STEP_ID", "SLURM_STEPID"):
        if name in environ:
            if not _STEP.fullmatch(environ[name]):
                _refuse(name, environ[name], "expected an integer")
            return int(environ[name])
    return None


def _step_size(environ: Mapping[str, str]) -> _Said:
    """How many tasks the step has. SLURM_STEP_ variables are the step's under every option; the
    others are the whole job's after `srun --preserve-env`."""
    for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"):
        if name in environ:
            return _said(environ, name)
    if "SLURM_STEP_TASKS_PER_NODE" in environ:
        return _sum_of_tasks(environ, "SLURM_STEP_TASKS_PER_NODE")
    if "SLURM_NNODES" in environ and "SLURM_NTASKS_PER_NODE" in environ:
        nodes, each = _said(environ, "SLURM_NNODES"), _said(environ, "SLURM_NTASKS_PER_NODE")
        return _Said(nodes.number * each.number, f"{nodes.shown} x {each.shown}")
    if "SLURM_TASKS_PER_NODE" in environ:
        return _sum_of_tasks(environ, "SLURM_TASKS_PER_NODE")
    raise ConfigError(
        f"SLURM_PROCID={_shorten(environ['SLURM_PROCID'])} says that this is one task of a Slurm "
        f"step, but SLURM_NTASKS is missing, which says of how many; start it with srun -n N"
    )


def _sum_of_tasks(environ: Mapping[str, str], name: str) -> _Said:
    text = environ[name]
    return _Said(sum(parse_tasks_per_node(text, name=name)), f"{name}={_shorten(text)}")


def _step_coordinator(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """The first host of the step, where srun puts task 0. If it is the only one, loopback: it needs
    no name that resolves, and no token, for nobody beyond the host can reach it."""
    names = ("SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")
    name = next((name for name in names if name in environ), None)
    job = next((name for name in ("SLURM_JOB_ID", "SLURM_JOBID") if name in environ), None)
    if name is None or job is None:
        return None
    hosts = parse_nodelist(environ[name], name=name)
    port = slurm_port(_said(environ, job).number, _step_id(environ) or 0)
    return hosts[0] if len(hosts) > 1 else "127.0.0.1", port


def _place(
    launcher: Launcher,
    environ: Mapping[str, str],
    rank: _Said,
    world_size: _Said,
    coordinator: tuple[str, int] | None = None,
    *,
    local: str | None = None,
) -> Place:
    if world_size.number < 1:
        raise ConfigError(f"{world_size.shown}: a world has at least 1 rank")
    if rank.number >= world_size.number:
        raise ConfigError(
            f"{rank.shown} is not a rank of {world_size.shown}; ranks are 0 to "
            f"{world_size.number - 1}"
        )
    return Place(
        rank.number,
        world_size.number,
        launcher,
        _given_coordinator(environ, world_size.number) or coordinator,
        environ.get("RLX_TOKEN_FILE"),
        _said(environ, local).number if local is not None and local in environ else None,
    )


def _given_coordinator(environ: Mapping[str, str], world_size: int) -> tuple[str, int] | None:
    text = environ.get("RLX_COORDINATOR")
    if text is None:
        return None
    host, port = parse_address(text, name="RLX_COORDINATOR")
    if port == 0 and world_size > 1:
        _refuse("RLX_COORDINATOR", text, "the ranks need one port that all know; give its number")
    return host, port


def _said(environ: Mapping[str, str], name: str) -> _Said:
    text = environ[name]
    if not _INTEGER.fullmatch(text):
        _refuse(name, text, "expected an integer from 0, of at most 18 digits")
    return _Said(int(text), f"{name}={text}")


def _bracketed(name: str, text: str, host: str) -> str:
    inside = host[1:-1]
    if not host.endswith("]") or ":" not in inside or not is_literal(inside):
        _refuse(name, text, "brackets hold an IPv6 address: [::1]:29400")
    return inside


def _split_outside_brackets(text: str) -> Iterator[str]:
    return iter(re.split(r",(?![^\[]*\])", text))


def _choices(name: str, text: str, numbers: str | None, plain: str | None) -> list[str]:
    """What one part of a host name may be: itself, or each number of its bracket."""
    if plain is not None:
        return [plain]
    found: list[str] = []
    for part in (numbers or "").split(","):
        match = _NUMBERS.fullmatch(part)
        if match is None:
            _refuse(name, text, "brackets hold numbers and ranges, such as [01-03,7]")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < MAX_NODES - len(found):
            _refuse(name, text, f"{part} counts down, or to more than {MAX_NODES} hosts")
        found.extend(str(number).zfill(len(match[1])) for number in range(first, last + 1))
    return found


def _refuse(name: str, value: str, expected: str) -> NoReturn:
    raise ConfigError(f"{name}={_shorten(value)}: {expected}")


def _refuse_partial(present: str, missing: list[str]) -> NoReturn:
    verb = "is" if len(missing) == 1 else "are"
    raise ConfigError(
        f"{present} is set but {' and '.join(missing)} {verb} not; a rank that is started by hand "
        f"needs RLX_RANK, RLX_WORLD_SIZE and RLX_COORDINATOR"
    )


def _shorten(value: str, limit_characters: int = 80) -> str:
    shown = repr(value)
    return shown if len(shown) <= limit_characters else f"{shown[:limit_characters]}..."
