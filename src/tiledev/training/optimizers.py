"""SGD, Adam and AdamW: those of `torch.optim`, with the whole step recorded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.optimizer import ParamsT
from torch.optim.sgd import sgd

from tiledev.training._step import RecordedStep, State, check_max_grad_norm, host_number

__all__ = ["SGD", "Adam", "AdamW"]

BUFFER = "momentum_buffer"
BEGUN = "momentum_begun"


class SGD(RecordedStep, torch.optim.SGD):
    """Stochastic gradient descent: `torch.optim.SGD`, recorded as one update of all parameters.

    The formula is PyTorch's (Sutskever et al., "On the importance of initialization and momentum in
    deep learning" (2013), with the learning rate outside of the momentum). States of the two are
    interchangeable. With `torch.amp.GradScaler` a step with infinite or NaN gradients is skipped
    without reading anything back.

    Args:
        params: parameters, named parameters or groups of them, as in `torch.optim`.
        lr: learning rate.
        momentum: momentum factor.
        dampening: dampening of the momentum.
        weight_decay: L2 penalty.
        nesterov: Nesterov's momentum; needs momentum and no dampening.
        maximize: ascend instead.
        max_grad_norm: clip all gradients together to this 2-norm, as
            `torch.nn.utils.clip_grad_norm_` does; `p.grad` itself is not changed.
        master_weights: keep a float32 copy of each float16 and bfloat16 parameter, and update that.

    Raises:
        ValueError: an option is out of its range.

    Example:
        >>> weight = torch.ones(2, device="tiledev", requires_grad=True)
        >>> optimizer = SGD([weight], lr=0.5)
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> weight.tolist()
        [0.5, 0.5]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        max_grad_norm: float | None = None,
        master_weights: bool = True,
    ) -> None:
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize)
        self.max_grad_norm = check_max_grad_norm("SGD", max_grad_norm)
        self.master_weights = master_weights

    def _prepare(
        self, group: dict[str, Any], params: list[Tensor], states: list[State], recorded: bool
    ) -> None:
        begun = any(BEGUN in state for state in states)
        if not group["momentum"] or not (recorded or begun):
            return
        for param, state in zip(params, states, strict=True):
            new = state.get(BUFFER) is None
            if new:
                state[BUFFER] = torch.zeros_like(param)
            # The first buffer is the gradient without dampening, and whether the first step was
            # skipped is known on the device alone. Without dampening zeros give the same.
            if BEGUN not in state and (begun or group["dampening"]):
                state[BEGUN] = torch.full((), not new, device=param.device)

    def _update(
        self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor], states: list[State]
    ) -> None:
        options = {key: group[key] for key in ("weight_decay", "momentum", "dampening")}
        options |= {"nesterov": group["nesterov"], "maximize": group["maximize"]}
        buffers: list[Tensor | None] = [state.get(BUFFER) for state in states]
        if group["momentum"] and any(BEGUN in state for state in states):
            grads = _begin_momentum(options, params, grads, states)
            options |= {"weight_decay": 0, "momentum": 0, "nesterov": False, "maximize": False}
        sgd(
            params,
            grads,
            buffers,
            has_sparse_grad=any(grad.is_sparse for grad in grads),
            foreach=True,
            fused=False,
            lr=host_number(group["lr"]),  # type: ignore[arg-type]
            **options,
        )
        if options["momentum"]:
            for state, buffer in zip(states, buffers, strict=True):
                state[BUFFER] = buffer

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as `torch.optim.SGD` has it, and float32 `master` weights if any."""
        packed = super().state_dict()
        packed["state"] = {key: _without_mark(state) for key, state in packed["state"].items()}
        return packed


def _begin_momentum(
    options: dict[str, Any], params: list[Tensor], grads: list[Tensor], states: list[State]
) -> list[Tensor]:
    """Updates buffers of which the device alone knows if they have begun; returns the direction."""
    if options["maximize"]:
        grads = list(torch._foreach_neg(grads))
    if options["weight_decay"]:
        grads = list(torch._foreach_add(grads, params, alpha=options["weight_decay"]))
    for grad, state in zip(grads, states, strict=True):
        moved = state[BUFFER] * options["momentum"] + grad * (1 - options["dampening"])
        torch.where(state[BEGUN], moved, grad, out=state[BUFFER])
        state[BEGUN].fill_(True)
    buffers = [state[BUFFER] for state in states]
    if options["nesterov"]:
        return list(torch._foreach_add(grads, buffers, alpha=options["momentum"]))
    return buffers


def _without_mark(state: State) -> State:
    plain = {key: value for key, value in state.items() if key != BEGUN}
    if BEGUN in state and not state[BEGUN].item():
        plain[BUFFER] = None
    return plain


class Adam(RecordedStep, torch.optim.Adam):
    """Adam: `torch.optim.Adam`, recorded as one update of all parameters.

    The formula is that of Kingma and Ba, "Adam: a method for stochastic optimization" (2014),
    algorithm 1; `amsgrad` is that of Reddi et al., "On the convergence of Adam and beyond" (2018).
    States of the two are interchangeable. With `torch.amp.GradScaler` a step with infinite or NaN
    gradients is skipped, and not counted, without reading anything back.

    Args:
        params: parameters, named parameters or groups of them, as in `torch.optim`.
        lr: learning rate.
        betas: decay rates of the averages of the gradient and of its square.
        eps: added to the denominator.
        weight_decay: L2 penalty.
        amsgrad: divide by the largest average of squares so far.
        maximize: ascend instead.
        decoupled_weight_decay: decay the weights themselves, as AdamW does.
        max_grad_norm: clip all gradients together to this 2-norm, as
            `torch.nn.utils.clip_grad_norm_` does; `p.grad` itself is not changed.
        master_weights: keep a float32 copy of each float16 and bfloat16 parameter, and update that;
            the averages are float32, too.

    Raises:
        ValueError: an option is out of its range.

    Example:
        >>> weight = torch.ones(2, device="tiledev", requires_grad=True)
        >>> optimizer = Adam([weight], lr=0.25)
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> weight.tolist()
        [0.75, 0.75]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        max_grad_norm: float | None = None,
        master_weights: bool = True,
    ) -> None:
        torch.optim.Adam.__init__(  # not super(): torch.optim.AdamW comes before it in AdamW
            self,
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            maximize=maximize,
            decoupled_weight_decay=decoupled_weight_decay,
        )
        self.max_grad_norm = check_max_grad_norm(type(self).__name__, max_grad_norm)
        self.master_weights = master_weights

    def _prepare(
        self, group: dict[str, Any], params: list[Tensor], states: list[State], recorded: bool
    ) -> None:
        names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]
        for param, state in zip(params, states, strict=True):
            if "step" not in state:
                state["step"] = torch.zeros((), device=param.device, dtype=torch.float32)
            state["step"] = state["step"].to(param.device, torch.float32)
            for name in names:
                if name not in state:
                    state[name] = torch.zeros_like(param)

    def _try_update(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        states: list[State],
        skip: Tensor,
    ) -> None:
        if _fusable(group, params, states):
            self._update(group, params, grads, states, skip.float())
        else:
            super()._try_update(group, params, grads, states, skip)

    def _update(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        states: list[State],
        found_inf: Tensor | None = None,
    ) -> None:
        if any(grad.is_sparse for grad in grads):
            raise RuntimeError(
                f"[{type(self).__name__}.step] got a sparse gradient; make it dense "
                "(sparse=False), or use torch.optim.SparseAdam"
            )
        fused = _fusable(group, params, states)
        if fused:
            grads = list(map(_with_strides_of, grads, params))
        steps = [state["step"] for state in states]
        beta1, beta2 = map(host_number, group["betas"])
        adam(
            params,
            grads,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [state["max_exp_avg_sq"] for state in states] if group["amsgrad"] else [],
            # Without the fused kernel corrections are computed in the dtype of the count.
            steps if fused else [step.to(torch.float64, copy=True) for step in steps],
            foreach=not fused,
            fused=fused,
            capturable=not fused and not params[0].is_cpu,
            found_inf=found_inf,
            has_complex=any(param.is_complex() for param in params),
            decoupled_weight_decay=group["decoupled_weight_decay"],
            amsgrad=group["amsgrad"],
            beta1=beta1,
            beta2=beta2,
            lr=host_number(group["lr"]),
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )
        if not fused:
            torch._foreach_add_(steps, 1)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as `torch.optim.Adam` has it, and float32 `master` weights if any."""
        packed = super().state_dict()
        packed["state"] = {
            key: state | {"step": state["step"].cpu()} if "step" in state else state
            for key, state in packed["state"].items()
        }
        return packed


class AdamW(Adam, torch.optim.AdamW):
    """AdamW: `torch.optim.AdamW`, recorded as one update of all parameters.

    Adam with the weights themselves decayed: Loshchilov and Hutter, "Decoupled weight decay
    regularization" (2019), algorithm 2.

    Args:
        params: as `Adam` has it, and so are all others.
        lr: learning rate.
        betas: decay rates of the averages.
        eps: added to the denominator.
        weight_decay: share of a weight, times the learning rate, that a step takes off.
        amsgrad: divide by the largest average of squares so far.
        maximize: ascend instead.
        max_grad_norm: clip all gradients together to this 2-norm.
        master_weights: keep a float32 copy of each float16 and bfloat16 parameter.

    Raises:
        ValueError: an option is out of its range.

    Example:
        >>> weight = torch.ones(2, device="tiledev", requires_grad=True)
        >>> optimizer = AdamW([weight], lr=0.25, weight_decay=0.5)
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> weight.tolist()
        [0.625, 0.625]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        max_grad_norm: float | None = None,
        master_weights: bool = True,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            maximize=maximize,
            decoupled_weight_decay=True,
            max_grad_norm=max_grad_norm,
            master_weights=master_weights,
        )


def _fusable(group: dict[str, Any], params: list[Tensor], states: list[State]) -> bool:
    """Tells whether PyTorch's fused kernel takes the parameters, and the options are numbers.

    The kernel walks memory and ignores strides: all tensors of a parameter must have the same, and
    no gaps. Averages are made without gaps.
    """
    options = map(host_number, (group["lr"], *group["betas"]))
    return all(
        param.is_floating_point() and state["exp_avg"].stride() == param.stride()
        for param, state in zip(params, states, strict=True)
    ) and not any(isinstance(option, Tensor) for option in options)


def _with_strides_of(grad: Tensor, param: Tensor) -> Tensor:
    return grad if grad.stride() == param.stride() else torch.empty_like(param).copy_(grad)
