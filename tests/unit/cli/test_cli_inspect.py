"""`rlx inspect` shows what a run would do, and trains nothing."""

from __future__ import annotations

import json
import re

from command_support import rlx


def shown(*arguments: object) -> str:
    done = rlx("inspect", *arguments)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def refused(*arguments: object) -> str:
    done = rlx("inspect", *arguments)
    assert done.returncode == 2
    assert not done.stdout
    assert done.stderr.startswith("rlx: error: ")
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def test_a_job_is_shown_with_its_parameters_data_and_steps(job):
    text = shown(job, "--set", "job.global_batch=8")
    assert str(job) in text
    assert re.search(r"^  w +F32\[3, 1\]  init:glorot_uniform\?seed=0$", text, re.MULTILINE)
    assert re.search(r"^  x +F32\[batch, 3\]  file://.*/x\.npy$", text, re.MULTILINE)
    assert "parameters  1, 12 bytes" in text
    assert "data        10 rows" in text
    assert "steps       2 epochs of 2 steps, by sgd" in text
    assert "step        8 rows, the last of an epoch 2, in microbatches of 4" in text
    assert not list(job.parent.glob("*.safetensors"))


def test_json_has_the_same_facts(job):
    facts = json.loads(shown(job, "--json"))
    assert facts["params"] == [
        {
            "name": "w",
            "dtype": "F32",
            "shape": [3, 1],
            "bytes": 12,
            "uri": "init:glorot_uniform?seed=0",
        }
    ]
    assert [one["type"] for one in facts["data"]] == ["F32[batch, 3]", "F32[batch, 1]"]
    places = ("rows", "epochs", "steps_per_epoch", "rows_per_step", "rows_per_microbatch")
    assert [facts[place] for place in places] == [10, 2, 3, 4, 4]
    assert facts["plan"]["bindings"] == {"batch": 4}
    other = json.loads(shown(job, "--json", "--set", "job.batch=5"))
    assert other["graph_sha256"] == facts["graph_sha256"]
    assert other["spec_sha256"] != facts["spec_sha256"]


def test_the_plan_shows_calls_buffers_and_bytes_by_the_nodes_of_the_graph(job):
    graph, plan = shown(job, "--graph"), shown(job, "--plan")
    (product,) = re.findall(r"^(%\d+) = matmul\(%\d+, %\d+\) : F32\[batch, 1\]$", graph, re.M)
    assert f" {product} matmul: matmul(F32[4, 3]@0, F32[3, 1]@<parameter 'w'>" in plan
    assert "1 = F32[3, 1]@<output 1>" in plan, "a gradient goes into the run's own vector"
    facts = json.loads(shown(job, "--json"))["plan"]
    calls, arena, peak = re.match(
        r"plan for batch=4: (\d+) calls, arena of ([\d,]+) bytes, at most ([\d,]+) in use", plan
    ).groups()
    assert int(calls) == facts["calls"] == len(re.findall(r"^ +\d+ %\d+ .*\(", plan, re.M))
    assert int(arena.replace(",", "")) == facts["arena_bytes"]
    assert int(peak.replace(",", "")) == facts["peak_bytes"]
    places = re.findall(r"([\d,]+) bytes at (\d+), from", plan)
    ends = [int(offset) + int(size.replace(",", "")) for size, offset in places]
    assert 0 < max(ends) <= facts["arena_bytes"]


def test_another_number_of_rows_is_another_plan(job):
    assert shown(job, "--plan", "--rows", "7").startswith("plan for batch=7: ")
    assert "bindings" not in shown(job, "--rows", "7")
    assert json.loads(shown(job, "--json", "--rows", "7"))["plan"]["bindings"] == {"batch": 7}


def test_the_graph_needs_no_data_and_the_rows_do(job):
    (job.parent / "x.npy").unlink()
    assert shown(job, "--graph").startswith("graph 'line.grad'\n")
    assert shown(job, "--plan")
    done = rlx("inspect", job)
    assert done.returncode == 1
    assert "x.npy" in done.stderr
    assert not done.stdout


def test_what_cannot_be_shown_is_refused(job):
    assert "not allowed with argument" in refused(job, "--plan", "--graph")
    assert "leave out --graph and --plan" in refused(job, "--plan", "--json")
    assert "--rows is at least 1; got 0" in refused(job, "--plan", "--rows", "0")
    assert "did you mean --plan?" in refused(job, "--plans")
    assert "cannot read the job" in refused(job.with_name("other.toml"))
    assert "did you mean" in refused(job, "--set", "job.bach=3")
