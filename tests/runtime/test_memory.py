import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from drivetrain.runtime.memory import keep_freed

if sys.argv[1] == "kept":
    assert keep_freed()

def step():
    return [torch.ones(1 << 20) for _ in range(16)]  # 4 MiB each

step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.cold
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_steps_after_the_first_find_their_memory_there():
    def faults(how):
        return int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, check=True).stdout)

    assert faults("kept") < faults("plain") / 20
