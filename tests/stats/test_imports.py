import subprocess
import sys


def test_stats_come_without_jax():
    code = "import sys, jprec.stats; print('jax' in sys.modules, 'matplotlib' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False False\n"
