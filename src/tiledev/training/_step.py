"""What the optimizers share: gradients made ready, masters, and steps that may be skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, overload

import torch
from torch import Tensor

__all__ = ["RecordedStep", "State", "check_max_grad_norm", "host_number"]

State = dict[str, Any]

MASTER = "master"
HALF = (torch.float16, torch.bfloat16)


class RecordedStep(torch.optim.Optimizer):
    """A step whose every decision is recorded: it reads nothing back from the device.

    A subclass also derives from the optimizer of `torch.optim` whose options and state it has, and
    says in `_prepare` and `_update` how a group of parameters is updated.

    Attributes:
        max_grad_norm: the norm to which a step clips all gradients together, or None.
        master_weights: whether parameters of half precision get float32 copies.
    """

    # torch.amp.GradScaler then sets `grad_scale` and `found_inf` and leaves the rest to the step.
    _step_supports_amp_scaling = True

    max_grad_norm: float | None = None
    master_weights: bool = True

    def _prepare(
        self, group: dict[str, Any], params: list[Tensor], states: list[State], recorded: bool
    ) -> None:
        """Makes the state that is missing; `recorded`: all that changes must be on the device."""
        raise NotImplementedError

    def _update(
        self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor], states: list[State]
    ) -> None:
        """Updates parameters and states in place."""
        raise NotImplementedError

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Records one step for all parameters that have a gradient.

        Args:
            closure: computes the loss and the gradients, and returns the loss.

        Returns:
            What the closure returned, or None.

        Raises:
            RuntimeError: a sparse gradient meets clipping, a gradient scaler or a master weight.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._step()
        return loss

    def _step(self) -> None:
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not params:
            return
        skips = {device: self._skip_on(device) for device in {p.device for p in params}}
        grads = dict(zip(params, self._gradients(params), strict=True))
        for group in self.param_groups:
            for device, skip in skips.items():
                own = [p for p in group["params"] if p.grad is not None and p.device == device]
                if own and skip is not True:
                    self._step_group(group, own, [grads[p] for p in own], skip)

    def _skip_on(self, device: torch.device) -> Tensor | bool | None:
        """Whether to skip the step there: a 0-d bool tensor, or what is known on the CPU."""
        found: Tensor | None = getattr(self, "found_inf", None)
        if found is None:
            return None
        if device.type == "cpu":
            return True if found.item() else None
        return found.to(device) != 0

    def _gradients(self, params: list[Tensor]) -> list[Tensor]:
        """The gradients as the update takes them: float32 for masters, unscaled, clipped."""
        grads = [_gradient(p).float() if self._has_master(p) else _gradient(p) for p in params]
        scale: Tensor | None = getattr(self, "grad_scale", None)
        if scale is None and self.max_grad_norm is None and not self._any_master(params):
            return grads
        if any(grad.is_sparse for grad in grads):
            raise RuntimeError(
                f"[{type(self).__name__}.step] got a sparse gradient, which cannot be clipped, "
                "unscaled or applied to a master weight; make it dense (sparse=False), or leave "
                "these options out"
            )
        if scale is not None:
            grads = _times(grads, scale.double().reciprocal().float())
        if self.max_grad_norm is not None:
            norm = torch.nn.utils.get_total_norm(grads)
            # torch.nn.utils.clip_grad_norm_'s formula; the gradients themselves stay as they are
            grads = _times(grads, torch.clamp(self.max_grad_norm / (norm + 1e-6), max=1.0))
        return grads

    def _step_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        skip: Tensor | bool | None,
    ) -> None:
        states = [self.state[p] for p in params]
        targets = [
            self._master(p, state) if self._has_master(p) else p
            for p, state in zip(params, states, strict=True)
        ]
        self._prepare(group, targets, states, isinstance(skip, Tensor))
        if isinstance(skip, Tensor):
            self._try_update(group, targets, grads, states, skip)
        else:
            self._update(group, targets, grads, states)
        halves = [(p, t) for p, t in zip(params, targets, strict=True) if p is not t]
        if halves:
            torch._foreach_copy_([p for p, _ in halves], [t for _, t in halves])
        for p, state in zip(params, states, strict=True):
            if not state:
                del self.state[p]  # as torch.optim: no entry without a state

    def _try_update(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        states: list[State],
        skip: Tensor,
    ) -> None:
        """Updates copies, and keeps them unless the step is skipped."""
        old = [*params]
        for state in states:
            old += [v for k, v in state.items() if isinstance(v, Tensor) and k != MASTER]
        new = dict(zip(old, (value.clone() for value in old), strict=True))
        tried = [
            {k: new.get(v, v) if isinstance(v, Tensor) else v for k, v in state.items()}
            for state in states
        ]
        self._update(group, [new[p] for p in params], grads, tried)
        for value, updated in new.items():
            torch.where(skip, value, updated, out=value)

    def _has_master(self, param: Tensor) -> bool:
        return self.master_weights and param.dtype in HALF

    def _any_master(self, params: Iterable[Tensor]) -> bool:
        return any(map(self._has_master, params))

    def _master(self, param: Tensor, state: State) -> Tensor:
        """The float32 copy of a parameter; what somebody else wrote to the parameter holds."""
        master: Tensor | None = state.get(MASTER)
        if master is None:
            master = state[MASTER] = param.detach().float()
        else:
            ours = master.to(param.dtype) == param
            torch.where(ours, master, param.float(), out=master)
        return master

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state of this optimizer or of its namesake in `torch.optim`.

        Args:
            state_dict: what `state_dict` returned; its tensors may be on any device.

        Raises:
            ValueError: groups or their lengths differ.
        """
        # The base class casts all to the parameters' dtype, in which masters would be lost.
        given: dict[str, Any] = {}
        handles = [
            self.register_load_state_dict_pre_hook(lambda _, final: given.update(final)),
            self.register_load_state_dict_post_hook(lambda _: self._widen(given), prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for handle in handles:
                handle.remove()

    def _widen(self, given: dict[str, Any]) -> None:
        """Sets the state of parameters with masters anew, in float32."""
        ids = chain.from_iterable(group["params"] for group in given["param_groups"])
        params = chain.from_iterable(group["params"] for group in self.param_groups)
        for index, param in zip(ids, params, strict=True):
            if self._has_master(param):
                for key, value in given["state"].get(index, {}).items():
                    if key != "step" and isinstance(value, Tensor) and value.is_floating_point():
                        self.state[param][key] = value.to(param.device, torch.float32)

    def __getstate__(self) -> dict[str, Any]:
        own = {"max_grad_norm": self.max_grad_norm, "master_weights": self.master_weights}
        return super().__getstate__() | own


def check_max_grad_norm(call: str, value: float | None) -> float | None:
    """Returns a norm to clip to as a float.

    Raises:
        ValueError: it is not above 0.
    """
    if value is not None and not value > 0:
        raise ValueError(f"[{call}] got max_grad_norm={value}; pass a number above 0, or None")
    return None if value is None else float(value)


def host_number(value: float | Tensor) -> float | Tensor:
    """Returns the float in a tensor on the CPU; a tensor on the device stays there."""
    return value.item() if isinstance(value, Tensor) and value.is_cpu else value


def _gradient(param: Tensor) -> Tensor:
    assert param.grad is not None
    return param.grad


def _times(tensors: list[Tensor], factor: Tensor) -> list[Tensor]:
    """Returns the tensors times a 0-d one, with one recorded op for each device."""
    results: dict[int, Tensor] = {}
    for device in {tensor.device for tensor in tensors}:
        at = [i for i, tensor in enumerate(tensors) if tensor.device == device]
        products = torch._foreach_mul([tensors[i] for i in at], factor.to(device))
        results.update(zip(at, products, strict=True))
    return [results[i] for i in range(len(tensors))]
