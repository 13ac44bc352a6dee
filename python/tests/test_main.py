"""The child's process: what it says, and when."""

import json
import subprocess
import sys
from pathlib import Path

ENGINE = Path(__file__).parents[1] / "run_engine.py"


def test_it_greets_before_the_slow_imports_and_beats_through_them():
    with subprocess.Popen([sys.executable, ENGINE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        first, second = (json.loads(child.stdout.readline()) for _ in range(2))
        assert first["type"] == "hello" and {"torch", "transformers"} <= first["versions"].keys()
        assert second == {"type": "alive", "stage": "import"}
        # The end of stdin ends it, in the middle of an import too.
        child.stdin.close()
        assert child.wait(timeout=60) == 0


def test_what_hello_needs_imports_no_transformers():
    script = "import sys, forebay.engine.hello; assert 'torch' in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=ENGINE.parent, check=True)
