import os
import subprocess
import sys

import pytest

from readme import BLOCKS


@pytest.mark.skipif("FGAI_RAW" not in os.environ, reason="the examples need Cora; set FGAI_RAW to PyG's raw files")
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_example_of_the_readme_runs_as_pasted(number, tmp_path):
    subprocess.run([sys.executable, "-c", BLOCKS[number]], cwd=tmp_path, check=True, timeout=600)
