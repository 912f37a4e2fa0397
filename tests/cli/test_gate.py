"""The gate of docs/gate.md: the command, the test and the workflow, each red for a plain model and green for FGAI's."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fgai.cli import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/gate.md").read_text()
WORKFLOW = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, re.S)[1])  # pyright: ignore[reportOptionalSubscript]
TEST = re.search(r"<!-- file: test_trust.py -->\n```python\n(.*?)```", PAGE, re.S)[1]  # pyright: ignore


def shell(command, folder):
    """Run a line of the page as it stands, with the fgai and the pytest of this Python."""
    start = f'fgai() {{ "{sys.executable}" -c "from fgai.cli import app; app()" "$@"; }}\n'
    start += f'pytest() {{ "{sys.executable}" -m pytest -p no:cacheprovider "$@"; }}\n'
    return subprocess.run(["bash", "-c", start + command], cwd=folder, capture_output=True, text=True)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gate")
    done = shell(f'fgai init && "{sys.executable}" mine.py', folder)
    assert done.returncode == 0, done.stderr
    (folder / "test_trust.py").write_text(TEST)
    fitted = shell("fgai fit --model mine:build --weights w.safetensors --out faithful --epochs 60", folder)
    assert fitted.returncode == 0, fitted.stderr
    return folder


@pytest.fixture(name="plain")
def _plain(folder, tmp_path):
    """The same folder, with the plain model where the re-trained one was."""
    for name in ("mine.py", "test_trust.py"):
        shutil.copy(folder / name, tmp_path)
    (tmp_path / "faithful").mkdir()
    shutil.copy(folder / "w.safetensors", tmp_path / "faithful" / "weights.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    "code",
    [
        "def build(: pass",
        "raise ValueError('bad module')",
        "import sys\nsys.exit(0)",
        "import sys\ndef build():\n    sys.exit(0)",
    ],
)
def test_a_module_that_ends_the_program_does_not_pass_the_gate(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ends_early.py").write_text(code)
    monkeypatch.delitem(sys.modules, "ends_early", raising=False)
    done = CliRunner().invoke(app, ["audit", "--model", "ends_early:build", "--require", "used", "--out", "gate.html"])
    assert done.exit_code == 2 and done.stderr.startswith("fgai: ends_early")
    assert "ends_early.py, line" in done.stderr and len(done.stderr.splitlines()) == 1


def test_an_empty_gate_is_refused():
    done = CliRunner().invoke(app, ["audit", "nofolder", "--require", ""])
    assert done.exit_code == 2 and "used" in done.stderr


STEPS = [step["run"] for step in WORKFLOW["jobs"]["audit"]["steps"] if "run" in step]


def test_the_steps_of_the_workflow_pass_for_the_model_that_was_re_trained(folder):
    install, *steps = STEPS
    assert install.startswith("pip install") and len(steps) == 2
    for step in steps:
        done = shell(step, folder)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "audit.html").exists()


def test_the_steps_of_the_workflow_fail_for_the_plain_model_and_say_why(plain):
    audit, test = STEPS[1:]
    audited, tested = shell(audit, plain), shell(test, plain)
    assert audited.returncode == 1 and "stable is no: Under node-injection" in audited.stderr
    assert "faithful is" not in audited.stderr and (plain / "audit.html").exists()
    assert tested.returncode == 1 and "stable is no: Under node-injection" in tested.stdout


def test_a_grade_that_there_is_not_is_a_wrong_use(tmp_path, monkeypatch):
    monkeypatch.setattr("fgai.auditing.audit", lambda *_, **__: pytest.fail("the attack began"))
    refused = CliRunner().invoke(app, ["audit", str(tmp_path), "--require", "stable,trusted"])
    assert refused.exit_code == 2 and "there is 'used', 'faithful' and 'stable'" in refused.stderr


def test_the_actions_of_the_example_are_those_of_our_own_workflows():
    own = "".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    used = re.findall(r"uses: *(\S+@[0-9a-f]{40})", PAGE)
    assert used and all(action in own for action in used)
