"""Products spread over devices, in a process of its own: their number is fixed when JAX starts."""

import os
import subprocess
import sys

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from jprec import matmul

assert len(jax.devices()) == 4
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
keys = jax.random.split(jax.random.key(0), 4)
a, b = jax.random.normal(keys[0], (8, 40)), jax.random.normal(keys[1], (40, 6))
image, kernel = jax.random.normal(keys[2], (4, 3, 6, 6)), jax.random.normal(keys[3], (2, 3, 3, 3))

def spread(f):
    return jax.shard_map(f, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))

for spec in ("fp8_e4m3@h100+chunk16", "bf16+bf16+kahan"):
    product = lambda a, b: matmul.matmul(a, b, spec)
    convolve = lambda x, k: matmul.conv_general_dilated(x, k, (1, 1), "SAME", spec)
    cases = [(product, a, b)] + [(convolve, image, kernel)] * ("@" in spec)
    for f, x, y in cases:
        def both(g):
            return jax.jit(jax.value_and_grad(lambda x, y: (g(x, y) ** 2).sum(), (0, 1)))(x, y)
        assert np.array_equal(jax.jit(spread(f))(x, y), f(x, y)), spec
        (_, got), (_, want) = both(spread(f)), both(f)
        # Each device rounds the sum over its own rows, and the sums are added up.
        assert np.array_equal(got[0], want[0]), spec
        error = float(jnp.abs(got[1] - want[1]).max() / jnp.abs(want[1]).max())
        assert error < 2.0**-5, (spec, error)

explicit = jax.make_mesh((4,), ("x",))
with jax.set_mesh(explicit):
    rows = jax.device_put(a, NamedSharding(explicit, P("x", None)))
    for spec in ("tf32@a100", "fp16+fp16"):
        assert np.array_equal(matmul.matmul(rows, b, spec), matmul.matmul(a, b, spec))
"""


def test_devices_multiply_as_one_forward_and_backward():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
