"""PyTorch in a share; with ``vllm`` it first asks for memory as vLLM does."""

import importlib
import json
import os
import sys
from typing import Any

from tests.gpu.programs import common

torch: Any = importlib.import_module("torch")  # of the machine that is measured, not of this project
torch.zeros(1, device="cuda")
context = common.own_mib()
free, total = (each >> 20 for each in torch.cuda.mem_get_info())
wanted = int(total * float(os.environ["GPU_SHARE_MEMORY_FRACTION"]))
if "vllm" in sys.argv:
    print(json.dumps({"free_mib": free, "wanted_mib": wanted, "context_mib": context, "starts": wanted <= free}))
    sys.exit()
matrix = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
common.run(
    lambda: (matrix @ matrix).sum().item(),
    lambda: torch.full((common.BLOCK_MIB << 18,), 1, device="cuda", dtype=torch.int32),
    torch.OutOfMemoryError,
    context_mib=context,
)
