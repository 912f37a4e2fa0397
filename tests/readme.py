"""The Python examples of README: `python tests/readme.py first` prints the first one."""

import re
import sys
from pathlib import Path

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parent.parent / "README.md").read_text(), re.DOTALL)

if __name__ == "__main__" and sys.argv[1:] == ["first"]:
    print(BLOCKS[0])
