"""job.toml, environment and flags, and every way in which they can be wrong."""

from __future__ import annotations

import pytest

from rlx.errors import ConfigError
from rlx.job import load_config
from rlx.job.build import data_roots

JOB = """
[job]
graph = "model.py:loss"
data = { x = "x.npy" }
epochs = 3
batch = 4

[optimizer]
lr = 0.1
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


def test_defaults_stand_under_file_under_environment_under_flags(job):
    plain = load_config(job, {}, [])
    assert plain.section("job")["lanes"] == 1
    assert plain.section("job")["epochs"] == 3
    environ = {"RLX_JOB_EPOCHS": "5", "RLX_JOB_LANES": "2", "HOME": "x"}
    assert load_config(job, environ, []).section("job")["epochs"] == 5
    both = load_config(job, environ, ["job.epochs=7", "net.transport=tcp"])
    assert both.section("job")["epochs"] == 7
    assert both.section("job")["lanes"] == 2
    assert both.section("net")["transport"] == "tcp"


def test_values_of_flags_are_toml_or_plain_text(job):
    config = load_config(job, {}, ["optimizer.lr=[0.1, 0.2, 0.3]", 'job.graph="a.py:b"'])
    assert config.section("optimizer")["lr"] == [0.1, 0.2, 0.3]
    assert config.section("job")["graph"] == "a.py:b"


def test_the_launchers_own_variables_are_no_settings(job):
    environ = {
        "RLX_RANK": "0",
        "RLX_WORLD_SIZE": "2",
        "RLX_COORDINATOR": "h:1",
        "RLX_TOKEN_FILE": "t",
    }
    assert load_config(job, environ, []).section("job")["epochs"] == 3


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("job.epoch=2", "no key 'epoch' in [job]; did you mean 'epochs'?"),
        ("job.momentum=0.5", "no key 'momentum' in [job]; momentum belongs to [optimizer]"),
        ("jobs.epochs=2", "no section [jobs]; did you mean 'job'?"),
        ("job.epochs=0", "job.epochs is a whole number, at least 1; got 0"),
        ("job.epochs=two", "job.epochs is a whole number, at least 1; got 'two'"),
        ("job.epochs=true", "got True"),
        ("optimizer.kind=rmsprop", "optimizer.kind is one of sgd, adam, adamw; got 'rmsprop'"),
        ("optimizer.lr=-1", "optimizer.lr is a number from 0, or a list of one for each epoch"),
        ("optimizer.momentum=1.0", "from 0 to below 1"),
        ("net.transport=udp", "one of auto, tcp, mpi, threads"),
        ("net.deadline_s=0", "a number of seconds above 0"),
        ("job.data={}", "job.data is a table"),
        ("params.w=3", "params.w is text; got 3"),
        ("epochs=3", "--set takes section.key=value"),
        ("job.epochs", "--set takes section.key=value"),
    ],
)
def test_a_wrong_override_is_explained(job, override, text):
    with pytest.raises(ConfigError) as caught:
        load_config(job, {}, [override])
    assert text in str(caught.value)
    assert override.partition("=")[0].partition(".")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (JOB.replace("epochs = 3", "epoch = 3"), "did you mean 'epochs'?"),
        (JOB.replace("epochs = 3\n", ""), "[job] has no epochs"),
        (JOB.replace("lr = 0.1", ""), "[optimizer] has no lr"),
        (JOB + "\nstray = 1", "there is no key 'stray' in [optimizer]"),
        ("epochs = 3\n" + JOB, "'epochs' stands outside of a section"),
        (JOB.replace("epochs = 3", "epochs = 3\nepochs = 4"), "duplicate key"),
        (JOB + "\n[job]\nlanes = 2\n", "duplicate key"),
        (JOB + "[[", "not valid TOML"),
        (JOB + "\n[evaluation]\nbatch = 3\n", "[evaluation] has no graph"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path, content, text):
    path = tmp_path / "job.toml"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {}, [])
    assert text in str(caught.value)
    assert "job.toml" in str(caught.value)


def test_a_wrong_variable_is_named(job):
    with pytest.raises(ConfigError, match=r"RLX_JOB_EPOCH: there is no key 'epoch'"):
        load_config(job, {"RLX_JOB_EPOCH": "3"}, [])


def test_a_missing_and_an_unreadable_file(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the job .*none\.toml: No such file"):
        load_config(tmp_path / "none.toml", {}, [])
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path, {}, [])
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(binary, {}, [])


def test_a_huge_file_is_not_read_whole(tmp_path):
    path = tmp_path / "huge.toml"
    with path.open("wb") as file:
        file.truncate(1 << 31)
    with pytest.raises(ConfigError, match="is it a job file"):
        load_config(path, {}, [])


def test_a_rank_may_read_from_the_jobs_folder_and_those_of_its_files(job, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    config = load_config(job, {}, [f"job.data={{x = '{elsewhere}/x.npy#t'}}"])
    assert data_roots(config) == sorted({tmp_path.resolve(), elsewhere.resolve()})
