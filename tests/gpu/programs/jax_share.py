"""JAX in a share."""

import importlib
from typing import Any

from tests.gpu.programs import common

jax: Any = importlib.import_module("jax")  # of the machine that is measured, not of this project
jnp = importlib.import_module("jax.numpy")
matrix = jnp.ones((2048, 2048), jnp.bfloat16)
common.run(
    lambda: jax.block_until_ready(matrix @ matrix),
    lambda: jax.device_put(jnp.ones((common.BLOCK_MIB << 18,), jnp.int32)).block_until_ready(),
    jax.errors.JaxRuntimeError,
)
