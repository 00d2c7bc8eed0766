"""The site file: which files are read, what precedes, and what reaches batch scripts and runs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpips.cli import cli
from mpips.config import site as site_module
from mpips.config.schema import load_config
from mpips.config.site import VARIABLE, SiteSettings, load_site
from mpips.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
BOTH = """
[site]
modules = ["gcc/13", "openmpi/5.0"]
environment = {NET = "ib 0", MINE = "$HERE/x"}

[slurm]
launcher = "srun"
ranks_per_node = 9
sbatch = ["--account=a", "--partition=p"]

[run]
folder = "$HERE/runs"
mpirun_args = ["--map-by", "numa"]
"""
TASK = [("task", "logistic"), ("data.train", "digits")]


def site_of(folder: Path, text: str) -> SiteSettings:
    (folder / "site.toml").write_text(text)
    return load_site({VARIABLE: str(folder / "site.toml")})


def test_a_job_has_the_defaults_of_the_site_and_its_own_values_precede(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERE", "/scratch/me")
    site = site_of(tmp_path, BOTH)
    config = load_config(None, TASK, site=site)
    assert (config.slurm.launcher, config.slurm.ranks_per_node) == ("srun", 9)
    assert config.run.folder == "/scratch/me/runs"
    assert site.environment["MINE"] == "/scratch/me/x"
    mine = [("slurm.ranks_per_node", 2), ("slurm.sbatch", ["--partition=q"])]
    mine.append(("run.mpirun_args", ["--bind-to", "none"]))
    config = load_config(None, [*TASK, *mine], site=site)
    assert (config.slurm.launcher, config.slurm.ranks_per_node) == ("srun", 2)
    # The last one of several options of one name holds.
    assert config.slurm.sbatch == ("--account=a", "--partition=p", "--partition=q")
    assert config.run.mpirun_args == ("--map-by", "numa", "--bind-to", "none")
    assert load_config(None, TASK).slurm.launcher == "mpirun"


def test_the_file_of_a_user_precedes_that_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, user = tmp_path / "machine.toml", tmp_path / "user.toml"
    machine.write_text(BOTH)
    user.write_text('[slurm]\nranks_per_node = 4\nsbatch = ["--account=mine"]\n')
    monkeypatch.setattr(site_module, "_FILES", (str(machine), str(user), str(tmp_path / "none")))
    site = load_site({})
    assert site.modules == ("gcc/13", "openmpi/5.0")
    assert site.defaults["slurm"]["launcher"] == "srun"
    assert site.defaults["slurm"]["ranks_per_node"] == 4
    assert site.defaults["slurm"]["sbatch"] == ["--account=a", "--partition=p", "--account=mine"]
    assert load_site({VARIABLE: ""}) == SiteSettings()
    assert load_site({VARIABLE: str(user)}).modules == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[train]\nepochs = 3", "train: must be one of the sections"),
        ("slurm = 3", "slurm: must be one of the sections"),
        ("[slurm]\nnode = 3", "slurm.node"),
        ("[slurm]\nnodes = 0", "slurm.nodes"),
        ("[site]\nmodule = []", "site.module"),
        ('[site]\nmodules = ["a; rm b"]', "'a; rm b' must be the name of a module"),
        ('[site]\nmodules = ["-x"]', "'-x' must be the name of a module"),
        ('[site]\nenvironment = {"A B" = "c"}', "must be a variable with a value of one line"),
        ('[site]\nenvironment = {A = "b\\nc"}', "must be a variable with a value of one line"),
        ("[slurm", "is not valid TOML"),
    ],
)
def test_what_no_site_file_may_have_is_named_with_the_file(
    text: str, error: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        site_of(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/site.toml: ")
    assert error in str(caught.value)


def test_a_file_that_is_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_site({VARIABLE: str(tmp_path / "none")})


def test_a_batch_script_loads_the_modules_and_sets_the_variables_of_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.toml").write_text(BOTH)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "site.toml"))
    monkeypatch.setenv("HERE", str(tmp_path))
    monkeypatch.setenv("MINE", "set already")
    job = ROOT / "jobs/configs/digits.toml"
    done = CliRunner().invoke(cli, ["submit", str(job), "--dry-run", "--nodes=2"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert "#SBATCH --account=a" in lines
    assert "#SBATCH --ntasks-per-node=9" in lines
    assert "export MPIPS_MODULES='gcc/13 openmpi/5.0'" in lines
    assert "export NET='ib 0'" in lines
    assert not any(line.startswith("export MINE=") for line in lines)
    (folder,) = (line for line in lines if line.startswith("export MPIPS_FOLDER="))
    assert shlex.split(folder)[1].startswith(f"MPIPS_FOLDER={tmp_path}/runs/digits-")
    assert "launch srun " in done.output
    # A script has its own launcher, whatever the site has for tasks.
    (tmp_path / "script.py").write_text("import mpips\n")
    done = CliRunner().invoke(cli, ["submit", "--dry-run", str(tmp_path / "script.py")])
    assert done.exit_code == 0, done.output
    assert "--no-kill" in done.output
