"""Passes on the devices of JAX: the same slabs, halos and sums as the threads, on one device or several.

A mask is uploaded once and stays; a pass sends the cores as one vector and gets the sums back as one vector. Several
devices share the planes of mode 1: each keeps a block with a halo, devices exchange nothing during a pass, and the host
adds what they send in float64. JAX is imported when an engine is made, and none of its flags is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from corten.engine.gibbs import GibbsPlan
from corten.engine.passes import Model

if TYPE_CHECKING:
    import jax

    from corten.engine.jax_passes import DeviceMaskPass, DeviceResidualPass

OLDEST_JAX = (0, 6)
INSTALL_JAX = "pip install 'corten[gpu]'"


@dataclass(frozen=True)
class Accelerator:
    """An engine on JAX's devices. device: "any" takes what JAX has, "gpu" refuses to run without one.

    devices: JAX devices of this process to share the planes of mode 1; by default the first one.
    fused: whether to compile the fused kernel where a GPU can run it; None: after enough passes over a mask.
    """

    device: str = "any"
    devices: Sequence[jax.Device] | None = None
    fused: bool | None = None

    def __post_init__(self) -> None:
        if self.device not in ("any", "gpu"):
            raise ValueError(f'device is {self.device!r}; give "any" or "gpu"')
        found = tuple(self.devices) if self.devices is not None else _first_device(self.device)
        if not found:
            raise ValueError("devices is empty; give at least one JAX device, or None for the first")
        if self.device == "gpu" and any(d.platform != "gpu" for d in found):
            raise ValueError(f'device is "gpu", but devices holds {found}; give GPUs, or device="any"')
        object.__setattr__(self, "devices", found)

    @property
    def label(self) -> str:
        found = self.devices or ()
        return f"jax ({found[0].device_kind}" + (f" x {len(found)})" if len(found) > 1 else ")")

    def mask_pass(self, spins: np.ndarray, model: Model, train_share: float) -> DeviceMaskPass:
        """Passes over spins; they are uploaded now."""
        from corten.engine.jax_passes import DeviceMaskPass

        return DeviceMaskPass(
            spins, model, train_share=train_share, devices=tuple(self.devices or ()), fused=self.fused
        )

    def residual_pass(self, values: np.ndarray, mask: np.ndarray) -> DeviceResidualPass:
        """Passes over values where the mask is not zero; they are uploaded now."""
        from corten.engine.jax_passes import DeviceResidualPass

        return DeviceResidualPass(values, mask, tuple(self.devices or ()))

    def sweep(self, plan: GibbsPlan, spins: np.ndarray, sweeps: int, seed: int, first: int = 0) -> np.ndarray:
        """Gibbs sweeps as `gibbs.sweep`, from the same random numbers, on the first device."""
        from corten.engine import jax_gibbs

        return jax_gibbs.sweep(plan, spins, sweeps, seed=seed, first=first, device=(self.devices or ())[0])


def _first_device(device: str) -> tuple[jax.Device, ...]:
    try:
        import jax
    except ImportError as error:
        raise ImportError(f'engine "{"gpu" if device == "gpu" else "jax"}" needs JAX: {INSTALL_JAX}') from error
    if jax.__version_info__[:2] < OLDEST_JAX:
        raise ImportError(f"JAX {jax.__version__} is too old; {INSTALL_JAX} brings 0.6 or newer")
    if device == "any":
        return (jax.local_devices()[0],)
    try:
        return (jax.local_devices(backend="gpu")[0],)
    except RuntimeError as error:
        raise OSError(
            f'engine "gpu" found no GPU: JAX {jax.__version__} sees {jax.local_devices()[0].device_kind} only. '
            "Install JAX for your GPU (see docs.jax.dev, installation), or take engine='jax' or engine='threads'"
        ) from error
