"""Slurm: which of its processes are ranks, of how many, and where they meet."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.errors import ConfigError
from rlx.net import Place, find_place, parse_address
from rlx.net.launch import (
    MAX_NODES,
    SLURM_FIRST_PORT,
    SLURM_PORTS,
    parse_nodelist,
    parse_tasks_per_node,
    slurm_port,
)

# What Slurm gives to a batch script: one process, however many tasks the job has room for.
BATCH_SCRIPT = {
    "ENVIRONMENT": "BATCH",
    "SLURM_JOB_ID": "200505",
    "SLURM_JOB_NODELIST": "gnode[10,20,25,37]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "4",
    "SLURM_NODELIST": "gnode[10,20,25,37]",
    "SLURM_NTASKS": "8",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "2(x4)",
}

# What srun adds for each task of a step in that job, here on two of the four nodes.
STEP = {
    **BATCH_SCRIPT,
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "gnode[20,25]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}

# The shell of salloc, which Slurm runs as a step with a reserved number.
INTERACTIVE_SHELL = {
    "PMIX_RANK": "0",
    "SLURM_JOB_ID": "1731344",
    "SLURM_NNODES": "1",
    "SLURM_NODELIST": "gpu71",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "0",
    "SLURM_STEPID": "4294967290",
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NODELIST": "gpu71",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_TASKS_PER_NODE": "8",
}


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def only_per_node(**changed: str) -> dict[str, str]:
    """A Slurm step whose size is said for each node alone."""
    return {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", **changed}


def refusal_of(environ: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        find_place(environ)
    message = str(caught.value)
    assert "\n" not in message
    return message


# What is a rank, and what is only a script.


def test_a_task_of_srun_is_a_rank_of_its_step():
    place = find_place(STEP)
    assert place == Place(3, 4, "slurm", ("gnode20", slurm_port(200505, 2)), local_rank=1)


def test_the_first_task_of_srun_is_rank_0_though_a_script_has_its_number_too():
    first = find_place({**STEP, "SLURM_PROCID": "0"})
    assert first is not None
    assert (first.rank, first.world_size) == (0, 4)
    assert find_place(BATCH_SCRIPT) is None


def test_the_shell_of_an_allocation_is_no_rank_but_srun_in_it_is():
    assert find_place(INTERACTIVE_SHELL) is None
    inside = {"SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_STEP_NUM_TASKS": "8"}
    place = find_place({**INTERACTIVE_SHELL, **inside})
    assert place is not None
    assert (place.rank, place.world_size, place.launcher) == (0, 8, "pmix")


def test_the_shell_of_an_allocation_stays_free_to_start_ranks_where_pmi_names_it_0_of_1():
    shell = {**INTERACTIVE_SHELL, "PMI_RANK": "0", "PMI_SIZE": "1"}
    assert find_place(shell) is None
    assert find_place({**shell, "PMI_RANK": "1", "PMI_SIZE": "2"}) == Place(1, 2, "pmi")


@pytest.mark.parametrize("step_id", ["4294967291", "4294967292", "-5"])
def test_no_reserved_step_is_a_rank(step_id):
    assert find_place({**STEP, "SLURM_STEP_ID": step_id}) is None


def test_a_step_number_that_is_no_integer_is_refused():
    assert refusal_of({**STEP, "SLURM_STEP_ID": "two"}).startswith("SLURM_STEP_ID='two'")


def test_the_older_name_of_the_step_number_is_enough():
    environ = {**without(STEP, "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"), "SLURM_STEPID": "2"}
    assert find_place({**environ, "SLURM_PROCID": "0"}) is not None


def test_without_a_step_number_the_steps_size_tells_too():
    environ = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    assert find_place(environ) == Place(0, 4, "slurm")
    assert find_place({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None


def test_an_allocation_in_sight_makes_no_rank():
    assert find_place({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}) is None


# How many.


def test_tasks_per_node_alone_give_the_world():
    environ = {
        "SLURM_JOB_ID": "1",
        "SLURM_NNODES": "2",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_PROCID": "5",
    }
    assert find_place(environ) == Place(5, 8, "slurm")
    message = refusal_of({**environ, "SLURM_PROCID": "8"})
    assert "SLURM_PROCID=8 " in message
    assert "SLURM_NNODES=2 x SLURM_NTASKS_PER_NODE=4" in message


@pytest.mark.parametrize("name", ["SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"])
def test_the_short_form_of_tasks_per_node_gives_the_world(name):
    place = find_place(only_per_node(**{name: "2(x3),1", "SLURM_PROCID": "6"}))
    assert place == Place(6, 7, "slurm")
    assert f"{name}='2(x3),1'" in refusal_of(
        only_per_node(**{name: "2(x3),1", "SLURM_PROCID": "7"})
    )


@pytest.mark.parametrize("value", ["x", "2(x", "2(x3", "2(3)", "2(x3),", ",1", "2 (x3)", "-1"])
def test_a_malformed_short_form_is_named_with_its_variable(value):
    message = refusal_of(only_per_node(SLURM_TASKS_PER_NODE=value))
    assert message.startswith(f"SLURM_TASKS_PER_NODE={value!r}:")


def test_the_steps_own_size_wins_over_the_jobs():
    # srun --preserve-env leaves the job's numbers in place of the step's.
    preserved = {"SLURM_NTASKS": "8", "SLURM_NNODES": "4", "SLURM_TASKS_PER_NODE": "2(x4)"}
    place = find_place({**STEP, **preserved})
    assert place is not None
    assert place.world_size == 4


def test_a_step_of_unknown_size_is_refused_and_not_taken_for_a_world_of_one():
    for procid in ("0", "3"):
        environ = only_per_node(SLURM_NNODES="2", SLURM_PROCID=procid)
        assert "SLURM_NTASKS is missing" in refusal_of(environ)


@pytest.mark.parametrize("name", ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"])
def test_a_slurm_value_that_is_no_integer_is_named_with_its_variable(name):
    assert refusal_of({**STEP, name: "n/a"}).startswith(f"{name}='n/a'")


# With MPI, and with ranks started by hand.


def test_mpirun_inside_a_slurm_script_is_mpirun():
    openmpi = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}
    for around in (BATCH_SCRIPT, STEP):
        assert find_place({**around, **openmpi}) == Place(2, 3, "openmpi")


def test_ranks_started_by_hand_inside_a_slurm_step_are_those_of_the_hand():
    by_hand = {"RLX_RANK": "1", "RLX_WORLD_SIZE": "3", "RLX_COORDINATOR": "10.0.0.7:29400"}
    place = find_place({**STEP, **by_hand})
    assert place == Place(1, 3, "rlx", ("10.0.0.7", 29400))


def test_a_task_that_srun_starts_for_pmi_keeps_the_steps_meeting_point():
    place = find_place({**STEP, "PMI_RANK": "3", "PMI_SIZE": "4"})
    assert place == Place(3, 4, "pmi", ("gnode20", slurm_port(200505, 2)), local_rank=1)


def test_a_rank_of_mpiexec_over_srun_does_not_take_its_helpers_meeting_point():
    place = find_place({**STEP, "PMI_RANK": "12", "PMI_SIZE": "16", "MPI_LOCALRANKID": "0"})
    assert place == Place(12, 16, "pmi", local_rank=0)


def test_a_task_that_srun_starts_for_pmix_is_a_rank_of_the_step():
    place = find_place({**STEP, "PMIX_RANK": "3"})
    assert place == Place(3, 4, "pmix", ("gnode20", slurm_port(200505, 2)), local_rank=1)


def test_a_pmix_rank_that_is_not_sruns_task_is_refused_with_both():
    message = refusal_of({**STEP, "PMIX_RANK": "7"})
    assert "PMIX_RANK=7" in message
    assert "SLURM_PROCID=3" in message


# Where the ranks meet.


def test_all_tasks_of_a_step_work_out_the_same_meeting_point_and_the_next_step_another():
    def meeting_point(**changed: str) -> object:
        place = find_place({**STEP, **changed})
        assert place is not None
        return place.coordinator

    assert len({meeting_point(SLURM_PROCID=str(rank)) for rank in range(4)}) == 1
    others = [{"SLURM_STEP_ID": "3"}, {"SLURM_JOB_ID": "200506"}]
    assert len({meeting_point(), *(meeting_point(**other) for other in others)}) == 3


def test_a_step_on_one_host_meets_on_loopback():
    place = find_place({**STEP, "SLURM_STEP_NODELIST": "gnode[20]"})
    assert place is not None
    assert place.coordinator == ("127.0.0.1", slurm_port(200505, 2))


def test_a_meeting_point_given_by_hand_wins_over_the_first_host():
    place = find_place({**STEP, "RLX_COORDINATOR": "10.1.1.1:29400"})
    assert place is not None
    assert place.coordinator == ("10.1.1.1", 29400)


@pytest.mark.parametrize("missing", ["SLURM_JOB_ID", "every nodelist"])
def test_without_a_job_or_hosts_the_ranks_are_known_but_not_where_they_meet(missing):
    hosts = ("SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")
    place = find_place(without(STEP, *(hosts if missing == "every nodelist" else (missing,))))
    assert place is not None
    assert (place.rank, place.world_size, place.coordinator) == (3, 4, None)


def test_a_malformed_nodelist_is_named_with_its_variable():
    message = refusal_of({**STEP, "SLURM_STEP_NODELIST": "gnode[20"})
    assert message.startswith("SLURM_STEP_NODELIST='gnode[20'")


@given(st.integers(0, 2**26), st.integers(0, 0xFFFFFFEF))
def test_a_port_is_one_that_a_user_may_bind_and_linux_does_not_hand_out(job_id, step_id):
    port = slurm_port(job_id, step_id)
    assert 1024 <= SLURM_FIRST_PORT <= port < SLURM_FIRST_PORT + SLURM_PORTS <= 32768


def test_jobs_side_by_side_get_different_ports():
    pairs = list(itertools.product(range(70000, 71000), range(16)))
    assert len({slurm_port(job, step) for job, step in pairs}) == len(pairs)


# The short forms.


@pytest.mark.parametrize(
    ("text", "tasks"),
    [("2(x3),1", [2, 2, 2, 1]), ("1(x2)", [1, 1]), ("4", [4]), ("0,3(x1)", [0, 3])],
)
def test_tasks_per_node_are_written_out(text, tasks):
    assert parse_tasks_per_node(text) == tasks


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_any_tasks_per_node_come_back_from_their_short_form(tasks):
    runs = [(count, len(list(run))) for count, run in itertools.groupby(tasks)]
    text = ",".join(f"{count}(x{times})" if times > 1 else f"{count}" for count, times in runs)
    assert parse_tasks_per_node(text) == tasks


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n[01-03,7]", ["n01", "n02", "n03", "n7"]),
        ("a1,b[2-3]-x", ["a1", "b2-x", "b3-x"]),
        ("head.example.org", ["head.example.org"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[09-11]", ["n09", "n10", "n11"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
        ("n[5],m[1,3],k", ["n5", "m1", "m3", "k"]),
    ],
)
def test_a_nodelist_is_written_out_in_order(text, hosts):
    assert parse_nodelist(text) == hosts


@pytest.mark.parametrize(
    "text",
    ["n[01", "n]", "n[]", "n[1-]", "n[a-b]", "n[1,,2]", "n[3-1]", "n[[1]]", "a,,b", "", ",", "a b"],
)
def test_a_malformed_nodelist_is_refused(text):
    with pytest.raises(ConfigError, match=re.escape(f"HOSTS={text!r}")):
        parse_nodelist(text, name="HOSTS")


@pytest.mark.parametrize("text", ["n[1-999999999999]", "a[0-9999]b[0-9999]", "n[1-9],m[1-1048570]"])
def test_a_nodelist_of_absurd_length_is_refused_before_it_is_written_out(text):
    with pytest.raises(ConfigError, match=str(MAX_NODES)):
        parse_nodelist(text)


def test_tasks_on_an_absurd_number_of_nodes_are_refused():
    with pytest.raises(ConfigError, match=str(MAX_NODES)):
        parse_tasks_per_node("1(x999999999)")


@given(st.text("an0123-[](x),.\n é", max_size=12))
def test_any_text_is_read_or_refused_in_one_line(text):
    for parse in (parse_nodelist, parse_tasks_per_node, parse_address):
        outcome: object
        try:
            outcome = parse(text)
        except ConfigError as refusal:
            outcome = str(refusal)
        assert outcome
        assert "\n" not in outcome
