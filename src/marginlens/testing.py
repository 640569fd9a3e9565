"""Contract suites for losses, norms, optimizers, risks and model adapters, built in or your own.

Each function returns None if the object keeps all promises of its protocol, and raises `AssertionError` otherwise. The argument of the
error is a fact: its string says which promise is broken, and its `code` and `numbers` are for programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.data.random_tokens import as_generator, sphere_tokens
from marginlens.dynamics.descend import descend
from marginlens.losses.margin import Loss
from marginlens.norms.protocol import Norm
from marginlens.optimizers.protocol import Optimizer
from marginlens.risk.protocol import Risk
from marginlens.typing import FloatArray, Seed
from marginlens.words import Fact

if TYPE_CHECKING:
    from marginlens.probe.models.adapters.base import Adapter, LayerReading

ROUNDING_RTOL = 1e-10
# Central differences with a step of 1e-5 or 1e-6 lose half of the digits.
DIFFERENCE_RTOL = 1e-5
# Largest difference of two probabilities.
ATTENTION_ATOL = 1e-5
# Relative to the largest logit: families rotate or normalise queries in single precision even in float64 models.
KEY_QUERY_RTOL = 1e-5
# Sizes of the points at which a norm is tried: callers bring gradients to moderate size.
SCALES = (1e-3, 1.0, 1e3)


def check_loss(loss: Loss, *, low: float = -5.0, high: float = 5.0, n_points: int = 50, rng: Seed = 0) -> None:
    r"""Check that the value, slope, rise and constants of a loss of the margin belong together.

    .. math:: \frac{\ell(u + h) - \ell(u - h)}{2h} \approx \ell'(u), \quad |\ell'(u)| \le M_1, \quad
        |\ell'(u) - \ell'(w)| \le M_0 |u - w|

    Args:
        loss: the loss to check.

        low: lower end of the interval of margins on which the loss is tried.

        high: upper end of the interval.

        n_points: number of random margins in it.

        rng: a `numpy.random.Generator` for the margins, or a whole number to seed one.

    Raises:
        AssertionError: if a promise is broken.

    Examples:
        >>> from marginlens.losses import Logistic
        >>> from marginlens.testing import check_loss
        >>> check_loss(Logistic())
    """
    generator = as_generator(rng)
    u = np.sort(generator.uniform(low, high, n_points))
    far = np.array([[-1e6, -700.0, -40.0], [40.0, 700.0, 1e6]])
    for name in ("value", "derivative", "log_abs_derivative", "derivative_sign"):
        method = getattr(loss, name)
        _promise("contract.loss.shape", np.shape(method(u)) == u.shape, method=name)
        if name in ("value", "log_abs_derivative"):
            with np.errstate(over="ignore"):
                _promise("contract.loss.far", not np.isnan(method(far)).any(), method=name)
        _promise("contract.loss.elementwise", np.array_equal(method(u[:3]), method(u)[:3]), method=name)
    value, slope, h = loss.value(u), loss.derivative(u), 1e-5
    difference = (loss.value(u + h) - loss.value(u - h)) / (2.0 * h)
    blur = DIFFERENCE_RTOL * (np.abs(slope) + 1e-3 + np.max(np.abs(value)))
    _promise("contract.loss.derivative", (np.abs(slope - difference) <= blur).all())
    _promise("contract.loss.log_derivative", _close(np.exp(loss.log_abs_derivative(u)), np.abs(slope)))
    _promise("contract.loss.derivative_sign", np.array_equal(loss.derivative_sign(u), np.sign(slope)))
    delta = generator.uniform(0.1, 0.5, n_points) * generator.choice([-1.0, 1.0], n_points)
    rise = loss.value(u - delta) - value
    blur = DIFFERENCE_RTOL * (np.abs(rise) + np.max(np.abs(value)))
    _promise("contract.loss.rise", (np.abs(loss.rise(u, delta) - rise) <= blur).all())
    signed = loss.signed_log_rise(u, np.log(np.abs(delta)), np.sign(delta))
    _promise("contract.loss.log_rise", (np.abs(signed.sign * np.exp(signed.log) - rise) <= blur).all())
    constants, largest = loss.constants(low, high), 1.0 + DIFFERENCE_RTOL
    _promise("contract.loss.bound", (np.abs(slope) <= largest * constants.bound).all())
    _promise("contract.loss.smallest", (largest * np.abs(slope) >= constants.smallest).all())
    change, limit = np.abs(np.diff(slope)), largest * constants.lipschitz * np.diff(u) + ROUNDING_RTOL
    _promise("contract.loss.lipschitz", (change <= limit).all())
    _promise("contract.loss.decreasing", not (constants.decreasing and (slope > 0.0).any()))


def check_norm(
    norm: Norm,
    shape: tuple[int, ...] | None = None,
    *,
    scales: tuple[float, ...] = SCALES,
    n_trials: int = 20,
    rng: Seed = 0,
) -> None:
    r"""Check that a norm is a norm, and that its dual norm and steepest directions belong to it.

    .. math:: \|cx\| = |c| \|x\|, \quad \|x + y\| \le \|x\| + \|y\|, \quad \langle g, x\rangle \le \|g\|_* \|x\|, \quad
        \langle g, s(g)\rangle = \|g\|_*, \ \|s(g)\| = 1

    Args:
        norm: the norm to check.

        shape: shape of the points to try; by default vectors, or matrices for a norm that says `needs_matrix` or takes no vectors.

        scales: sizes of the entries of the points.

        n_trials: number of random points.

        rng: a `numpy.random.Generator` for the points, or a whole number to seed one.

    Raises:
        AssertionError: if a promise is broken.

    Examples:
        >>> from marginlens.norms import L1
        >>> from marginlens.testing import check_norm
        >>> check_norm(L1())
    """
    generator = as_generator(rng)
    shape = _measured_shape(norm) if shape is None else shape
    _promise("contract.norm.zero", norm.value(np.zeros(shape)) == 0.0)
    for _ in range(n_trials):
        x, y, g = (generator.standard_normal(shape) for _ in range(3))
        for scale in scales:
            _promise("contract.norm.scaling", _near(norm.value(-scale * x), scale * norm.value(x)), factor=-scale)
            _promise("contract.norm.dual_scaling", _near(norm.dual(-scale * g), scale * norm.dual(g)), factor=-scale)
            s = norm.steepest(scale * g)
            _promise("contract.norm.steepest_shape", np.shape(s) == shape, shape=str(shape))
            _promise("contract.norm.steepest_norm", _near(norm.value(s), 1.0), scale=scale)
            _promise("contract.norm.steepest_product", _near(float(np.sum(g * s)), norm.dual(g)), scale=scale)
        slack = ROUNDING_RTOL * (norm.value(x) + norm.value(y))
        _promise("contract.norm.triangle", norm.value(x + y) <= norm.value(x) + norm.value(y) + slack)
        product = float(np.sum(g * x))
        _promise("contract.norm.duality", product <= norm.dual(g) * norm.value(x) * (1.0 + ROUNDING_RTOL))


def _measured_shape(norm: Norm) -> tuple[int, ...]:
    """Choose (5,) if a norm measures vectors, (3, 4) if it measures only matrices."""
    if getattr(norm, "needs_matrix", False):
        return (3, 4)
    try:
        norm.value(norm.steepest(np.ones(5)))
    except (IndexError, ValueError):
        # NumPy raises these if an axis is missing.
        return (3, 4)
    return (5,)


def check_optimizer(optimizer: Optimizer, shape: tuple[int, ...] = (4,), *, rng: Seed = 0) -> None:
    """Check that an optimizer keeps its state outside itself, takes steps of the right shape, and can be interrupted and resumed.

    Args:
        optimizer: the optimizer to check.

        shape: shape of the points on which its `update` is tried.

        rng: a `numpy.random.Generator` for points and gradients, or a whole number to seed one.

    Raises:
        AssertionError: if a promise is broken.

    Examples:
        >>> from marginlens import NormalizedGD
        >>> from marginlens.testing import check_optimizer
        >>> check_optimizer(NormalizedGD(0.1))
    """
    generator = as_generator(rng)
    x0 = generator.standard_normal(shape)
    gradients = [LogScaled(generator.standard_normal(shape), np.asarray(-0.1 * k), len(shape)) for k in range(5)]
    copies = [gradient.array.copy() for gradient in gradients]
    same = _same(_moves(optimizer, x0, gradients), _moves(optimizer, x0, gradients))
    _promise("contract.optimizer.same_steps", same)
    _promise("contract.optimizer.state", _keeps_states(optimizer, x0, gradients))
    for gradient, copy in zip(gradients, copies, strict=True):
        _promise("contract.optimizer.gradient", np.array_equal(gradient.array, copy))
    for move in _moves(optimizer, x0, gradients):
        _promise("contract.optimizer.shape", np.shape(move) == shape, shape=str(shape))
        _promise("contract.optimizer.finite", bool(np.isfinite(move).all()))
    tiny = LogScaled(gradients[0].array, np.asarray(-1e4), len(shape))
    _promise("contract.optimizer.tiny", bool(np.isfinite(_moves(optimizer, x0, [tiny])[0]).all()))
    data, head = sphere_tokens(3, 2, 4, 3, 0)
    whole = descend(data, head, optimizer=optimizer, n_steps=12)
    halves = descend(data, head, optimizer=optimizer, n_steps=5).resume(7)
    _promise("contract.optimizer.resume", np.array_equal(whole.final, halves.final))
    singles = np.stack([descend(data[j], head[j], optimizer=optimizer, n_steps=12).final for j in range(len(data))])
    _promise("contract.optimizer.batch", _close(whole.final, singles))


def check_risk(risk: Risk, *, n_points: int = 5, scale: float = 1.0, rng: Seed = 0) -> None:
    r"""Check that the value, its logarithm, the gradient and the smoothness of a risk of one problem belong together.

    .. math:: \frac{L(x + hd) - L(x - hd)}{2h} \approx \langle \nabla L(x), d\rangle, \quad
        \|\nabla L(x) - \nabla L(y)\| \le L_{\text{smooth}} \|x - y\|

    Args:
        risk: the risk to check.

        n_points: number of random points to try.

        scale: typical size of their entries.

        rng: a `numpy.random.Generator` for the points, or a whole number to seed one.

    Raises:
        AssertionError: if a promise is broken.

    Examples:
        >>> from marginlens import AttentionRisk, data
        >>> from marginlens.testing import check_risk
        >>> check_risk(AttentionRisk(*data.figure_1b()))
    """
    _promise("contract.risk.single", not getattr(risk, "is_batch", False))
    generator = as_generator(rng)
    previous = None
    for _ in range(n_points):
        x, direction = scale * generator.standard_normal(risk.shape), generator.standard_normal(risk.shape)
        direction /= np.linalg.norm(direction)
        value = float(risk.value(x))
        _promise("contract.risk.value", np.isfinite(value))
        if value > 0.0:
            _promise("contract.risk.log_value", _near(float(np.exp(risk.log_value(x))), value))
        gradient = risk.gradient(x)
        _promise("contract.risk.gradient_shape", gradient.array.shape == tuple(risk.shape), shape=str(risk.shape))
        h = 1e-6 * (1.0 + scale)
        difference = (float(risk.value(x + h * direction)) - float(risk.value(x - h * direction))) / (2.0 * h)
        slope, size = float(np.sum(gradient.value() * direction)), float(np.exp(gradient.log_norm))
        blur = DIFFERENCE_RTOL * (size + 1e-3) + 1e-9 * abs(value)
        _promise("contract.risk.gradient", abs(slope - difference) <= blur, slope=slope, difference=difference)
        _promise("contract.risk.select", np.asarray(risk.select(x)).dtype.kind in "iu")
        if previous is not None:
            bound = float(np.max(risk.smoothness())) * float(np.linalg.norm(x - previous[0]))
            change = float(np.linalg.norm(gradient.value() - previous[1]))
            _promise("contract.risk.smoothness", change <= bound * (1.0 + ROUNDING_RTOL) + 1e-15)
        previous = (x, gradient.value())


def check_adapter(model: Any, batch: Mapping[str, Any], *, atol: float = ATTENTION_ATOL, rng: Seed = 0) -> None:
    r"""Check that the adapter of a model reads what the model computes, and the W behind it.

    For every layer that the batch reaches, its attention must be the model's own at every query, hidden tokens must get no attention, and
    a batch must give the same as its inputs one by one. If the adapter reads the family's W, then, with the factors, the bias and the cap
    that a `LayerReading` states,

    .. math:: \mathrm{cap}^{-1}(\text{logit}(x, z)) - b(x, z) = r_z r_x (x^\top W z + x^\top w_0 + c_z)

    for tokens x that replace one another, at several offsets if positions are rotary.

    Args:
        model: a loaded model of the adapter's family with attn_implementation="eager"; a small random one in float64 will do. Weights
            far from zero make the comparison sharp.

        batch: the arguments that the model is called with, for at least two inputs of six tokens.

        atol: the largest allowed difference of two attention probabilities.

        rng: a `numpy.random.Generator` for the replaced tokens, or a whole number to seed one.

    Raises:
        AssertionError: if a promise is broken.
    """
    from marginlens.probe.models.adapters import adapter_for
    from marginlens.probe.models.reading import read_attention

    adapter = adapter_for(model)
    readings = {reading.layer: reading for reading in read_attention(model, batch)}
    _promise("contract.adapter.layers", bool(readings))
    n_inputs = len(next(iter(batch.values())))
    for layer, own in _own_attention(adapter, batch, set(readings)).items():
        reading = readings[layer]
        same_shape = own.shape == reading.attention.shape
        _promise("contract.adapter.attention_shape", same_shape, layer=layer, shape=str(tuple(own.shape)))
        rows = reading.visible.any(dim=-1)  # (B, T)
        error = (reading.attention - own).abs().transpose(1, 2)[rows]
        worst = float("inf") if bool(error.isnan().any()) else float(error.max())
        _promise("contract.adapter.attention", worst <= atol, layer=layer, tolerance=atol, error=worst)
        hidden = ~reading.visible & rows[:, :, None]
        outside = own.abs().amax(dim=1)[hidden]
        unseen = not outside.numel() or float(outside.max()) <= atol
        _promise("contract.adapter.hidden", unseen, layer=layer)
        finite = reading.logits.isfinite() == reading.visible[:, None]
        _promise("contract.adapter.finite", bool((finite | ~rows[:, None, :, None]).all()), layer=layer)
    singles = ({key: value[k : k + 1] for key, value in batch.items()} for k in range(n_inputs))
    for k, single in enumerate(singles):
        for reading in read_attention(model, single):
            size = len(reading.logits)  # one input, or its windows
            whole, lone = readings[reading.layer].attention[k * size : (k + 1) * size], reading.attention
            far = float((whole - lone).abs().masked_fill(~reading.visible[:, None], 0.0).max())
            _promise("contract.adapter.batch", far <= 10 * atol, layer=reading.layer, error=far)
    if adapter.reads_weights:
        _check_key_query(adapter, batch, sorted(readings), as_generator(rng))


def _own_attention(adapter: Adapter, batch: Mapping[str, Any], layers: set[int]) -> dict[int, Any]:
    """Collect the attention (B, H, T, S) that the modules themselves return, by layer."""
    import torch

    from marginlens.probe.models.reading import model_inputs

    calls: dict[int, list[Any]] = {}
    modules = {id(module): module for module in map(adapter.attention_module, range(adapter.n_layers))}

    def note(module: object, args: Any, output: Any) -> None:
        calls.setdefault(id(module), []).append(output[adapter.attention_output])

    hooks = [module.register_forward_hook(note) for module in modules.values()]
    try:
        with torch.no_grad():
            adapter.run(adapter.complete(model_inputs(adapter.model, batch)))
    finally:
        for hook in hooks:
            hook.remove()
    return {
        layer: calls[id(adapter.attention_module(layer))].pop(0) for layer in range(adapter.n_layers) if layer in layers
    }


def _check_key_query(adapter: Adapter, batch: Mapping[str, Any], layers: list[int], rng: np.random.Generator) -> None:
    """Check that the logits change as W says if some tokens of a layer's input are replaced."""
    from dataclasses import replace

    import torch

    from marginlens.probe.models.reading import record_layers

    with torch.no_grad():
        record = record_layers(adapter, batch, set(layers))
    for layer, captured in record.captured.items():
        is_cross = captured.memory is not None
        keys = captured.inputs if captured.memory is None else captured.memory
        position = np.arange(keys.shape[1])
        # In self-attention the tokens of the compared queries stay, so that offsets of 1, 2 and 3 occur.
        changed = position if is_cross else position[position % 4 >= 2]
        asked = np.arange(captured.inputs.shape[1]) if is_cross else position[position % 4 < 2]
        others = keys.clone()
        noise = torch.as_tensor(rng.standard_normal((len(keys), len(changed), keys.shape[2])))
        others[:, changed] = noise.to(keys) * keys.std()
        with torch.no_grad():
            before = adapter.read(layer, captured)
            after = adapter.read(layer, replace(captured, **{"memory" if is_cross else "inputs": others}))
        first, second = (_bilinear(reading)[:, :, asked][..., changed] for reading in (before, after))
        seen = before.visible.cpu().numpy()[:, asked][..., changed]
        z = captured.inputs[:, asked].double().cpu().numpy()
        change = (keys - others)[:, changed].double().cpu().numpy()
        _promise("contract.adapter.length", bool(seen.any()), layer=layer)
        offsets = asked[:, None] - changed[None, :]
        for head in range(adapter.shape(layer).n_heads):
            own = np.where(seen, first[:, head], 0.0) - np.where(seen, second[:, head], 0.0)
            for offset in np.unique(offsets).tolist() if adapter.rotary else [None]:
                map_ = adapter.key_query(layer, head, offset)
                ours = np.einsum("btd,bsd->bts", z @ map_.matrix.T + map_.bias_column, change)
                compared = seen if offset is None else seen & (offsets == offset)
                largest = float(np.abs(np.where(seen, first[:, head], 0.0)).max())
                worst = float(np.abs(np.where(compared, own - ours, 0.0)).max()) / max(largest, 1e-300)
                numbers = {"layer": layer, "head": head, "error": worst, "tolerance": KEY_QUERY_RTOL}
                case = {} if offset is None else {"case": "offset", "offset": offset}
                _promise("contract.adapter.weights", worst <= KEY_QUERY_RTOL, **numbers, **case)


def _bilinear(reading: LayerReading) -> FloatArray:
    """Compute the logits (B, H, T, S) without cap, bias and factors."""
    import torch

    logits = reading.logits.double()
    if reading.cap is not None:
        logits = reading.cap * torch.atanh(logits / reading.cap)
    if reading.bias is not None:
        logits = logits - reading.bias
    if reading.query_factor is not None and reading.key_factor is not None:
        logits = logits / (reading.query_factor[..., :, None] * reading.key_factor[..., None, :])
    return np.asarray(logits.cpu().numpy())


def _moves(optimizer: Optimizer, x0: FloatArray, gradients: list[LogScaled]) -> list[FloatArray]:
    """Take the steps of one problem; an optimizer that is batched gets it as a batch of one."""
    batched = bool(getattr(optimizer, "batched", False))
    state, moves = optimizer.init(x0[None] if batched else x0), []
    for gradient in gradients:
        move, state = optimizer.update(_as_called(optimizer, gradient), state)
        moves.append(np.array(move)[0] if batched else np.array(move))
    return moves


def _as_called(optimizer: Optimizer, gradient: LogScaled) -> LogScaled:
    """Return a gradient of one problem as descent passes it to the optimizer, with a batch axis if the optimizer is batched."""
    if not getattr(optimizer, "batched", False):
        return gradient
    return LogScaled(gradient.array[None], gradient.log_scale[None], gradient.axes)


def _keeps_states(optimizer: Optimizer, x0: FloatArray, gradients: list[LogScaled]) -> bool:
    """Return whether two updates from one state agree, for a state that has seen some gradients."""
    first, second, third = (_as_called(optimizer, gradient) for gradient in gradients[:3])
    batched = bool(getattr(optimizer, "batched", False))
    _, state = optimizer.update(first, optimizer.init(x0[None] if batched else x0))
    moves = [np.array(optimizer.update(gradient, state)[0]) for gradient in (second, third, second)]
    return np.array_equal(moves[0], moves[2])


def _promise(code: str, /, kept: bool | np.bool_, **numbers: float | int | str) -> None:
    if not kept:
        raise AssertionError(Fact(code, numbers))


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= ROUNDING_RTOL * max(abs(a), abs(b))


def _close(a: FloatArray, b: FloatArray) -> bool:
    return bool(np.allclose(a, b, rtol=ROUNDING_RTOL, atol=ROUNDING_RTOL))


def _same(a: list[FloatArray], b: list[FloatArray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
