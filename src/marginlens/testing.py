"""Contract suites: what every loss, norm, optimizer, risk and model adapter must do, for the built-in ones and for a user's own.

Each function raises `AssertionError` with the broken promise in words, and returns None where all of them are kept.
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
from marginlens.typing import FloatArray

if TYPE_CHECKING:
    from marginlens.probe.models.adapters.base import Adapter, LayerReading

ROUNDING_RTOL = 1e-10
DIFFERENCE_RTOL = 1e-5  # of central differences
ATTENTION_ATOL = 1e-5  # of a probability, that an adapter may miss
KEY_QUERY_RTOL = (
    1e-5  # of the largest logit: families turn or normalise queries in single precision also in float64 models
)
SCALES = (1e-3, 1.0, 1e3)  # of points that a norm is asked about: callers bring gradients to moderate size


def check_loss(loss: Loss, *, low: float = -5.0, high: float = 5.0, n_points: int = 50, rng: Any = 0) -> None:
    r"""Check that the value, slope, rise and constants of a loss of the margin belong together.

    .. math:: \frac{\ell(u + h) - \ell(u - h)}{2h} \approx \ell'(u), \quad |\ell'(u)| \le M_1, \quad
        |\ell'(u) - \ell'(w)| \le M_0 |u - w|

    Args:
        low, high: interval of margins on which the loss is tried.

        n_points: number of random margins in it.
    """
    generator = as_generator(rng)
    u = np.sort(generator.uniform(low, high, n_points))
    far = np.array([[-1e6, -700.0, -40.0], [40.0, 700.0, 1e6]])
    for name in ("value", "derivative", "log_abs_derivative", "derivative_sign"):
        method = getattr(loss, name)
        _promise(np.shape(method(u)) == u.shape, f"{name} has the shape of the margins")
        if name in ("value", "log_abs_derivative"):
            with np.errstate(over="ignore"):
                _promise(not np.isnan(method(far)).any(), f"{name} is a number, or infinite, for margins up to ±1e6")
        _promise(np.array_equal(method(u[:3]), method(u)[:3]), f"{name} is elementwise")
    value, slope, h = loss.value(u), loss.derivative(u), 1e-5
    difference = (loss.value(u + h) - loss.value(u - h)) / (2.0 * h)
    blur = DIFFERENCE_RTOL * (np.abs(slope) + 1e-3 + np.max(np.abs(value)))
    _promise((np.abs(slope - difference) <= blur).all(), "derivative is the slope of value")
    _promise(_close(np.exp(loss.log_abs_derivative(u)), np.abs(slope)), "log_abs_derivative is log |derivative|")
    _promise(np.array_equal(loss.derivative_sign(u), np.sign(slope)), "derivative_sign is the sign of derivative")
    delta = generator.uniform(0.1, 0.5, n_points) * generator.choice([-1.0, 1.0], n_points)
    rise = loss.value(u - delta) - value
    blur = DIFFERENCE_RTOL * (np.abs(rise) + np.max(np.abs(value)))
    _promise((np.abs(loss.rise(u, delta) - rise) <= blur).all(), "rise(u, δ) is ℓ(u - δ) - ℓ(u)")
    signed = loss.signed_log_rise(u, np.log(np.abs(delta)), np.sign(delta))
    _promise(
        (np.abs(signed.sign * np.exp(signed.log) - rise) <= blur).all(), "signed_log_rise is the logarithm of rise"
    )
    constants, largest = loss.constants(low, high), 1.0 + DIFFERENCE_RTOL
    _promise((np.abs(slope) <= largest * constants.bound).all(), "|ℓ'| is at most the bound of constants(low, high)")
    _promise(
        (largest * np.abs(slope) >= constants.smallest).all(), "|ℓ'| is at least the smallest of constants(low, high)"
    )
    change, room = np.abs(np.diff(slope)), largest * constants.lipschitz * np.diff(u) + ROUNDING_RTOL
    _promise((change <= room).all(), "ℓ' changes no faster than the lipschitz of constants(low, high)")
    _promise(not (constants.decreasing and (slope > 0.0).any()), "a loss that constants call decreasing decreases")


def check_norm(
    norm: Norm,
    shape: tuple[int, ...] | None = None,
    *,
    scales: tuple[float, ...] = SCALES,
    n_trials: int = 20,
    rng: Any = 0,
) -> None:
    r"""Whether a norm is one, and its dual norm and steepest directions belong to it.

    .. math:: \|cx\| = |c| \|x\|, \quad \|x + y\| \le \|x\| + \|y\|, \quad \langle g, x\rangle \le \|g\|_* \|x\|, \quad
        \langle g, s(g)\rangle = \|g\|_*, \ \|s(g)\| = 1

    Args:
        shape: of the points to try; by default vectors, or matrices for a norm that says `needs_matrix` or takes no vectors.
        scales: sizes of their entries.
        n_trials: how many random ones.
    """
    generator = as_generator(rng)
    shape = _measured_shape(norm) if shape is None else shape
    _promise(norm.value(np.zeros(shape)) == 0.0, "the norm of zero is zero")
    for _ in range(n_trials):
        x, y, g = (generator.standard_normal(shape) for _ in range(3))
        for scale in scales:
            _promise(_near(norm.value(-scale * x), scale * norm.value(x)), f"‖cx‖ = |c| ‖x‖ at c = {-scale:g}")
            _promise(_near(norm.dual(-scale * g), scale * norm.dual(g)), f"‖cg‖* = |c| ‖g‖* at c = {-scale:g}")
            s = norm.steepest(scale * g)
            _promise(np.shape(s) == shape, f"a steepest direction has the shape {shape} of the gradient")
            _promise(_near(norm.value(s), 1.0), f"a steepest direction has norm one at gradients of size {scale:g}")
            _promise(_near(float(np.sum(g * s)), norm.dual(g)), f"⟨g, s(g)⟩ = ‖g‖* at gradients of size {scale:g}")
        slack = ROUNDING_RTOL * (norm.value(x) + norm.value(y))
        _promise(norm.value(x + y) <= norm.value(x) + norm.value(y) + slack, "‖x + y‖ ≤ ‖x‖ + ‖y‖")
        product = float(np.sum(g * x))
        _promise(product <= norm.dual(g) * norm.value(x) * (1.0 + ROUNDING_RTOL), "⟨g, x⟩ ≤ ‖g‖* ‖x‖")


def _measured_shape(norm: Norm) -> tuple[int, ...]:
    """(5,) where a norm measures vectors, (3, 4) where it measures matrices alone."""
    if getattr(norm, "needs_matrix", False):
        return (3, 4)
    try:
        norm.value(norm.steepest(np.ones(5)))
    except (IndexError, ValueError):  # what NumPy raises where an axis is missing
        return (3, 4)
    return (5,)


def check_optimizer(optimizer: Optimizer, shape: tuple[int, ...] = (4,), *, rng: Any = 0) -> None:
    """Whether an optimizer keeps its state outside itself, takes steps of the right shape, and gives the same run however it is cut.

    Args:
        shape: of the points to try its `update` on.
    """
    generator = as_generator(rng)
    x0 = generator.standard_normal(shape)
    gradients = [LogScaled(generator.standard_normal(shape), np.asarray(-0.1 * k), len(shape)) for k in range(5)]
    copies = [gradient.array.copy() for gradient in gradients]
    _promise(
        _same(_moves(optimizer, x0, gradients), _moves(optimizer, x0, gradients)),
        "the same gradients give the same steps",
    )
    _promise(_keeps_states(optimizer, x0, gradients), "update leaves the state that it is given as it was")
    for gradient, copy in zip(gradients, copies, strict=True):
        _promise(np.array_equal(gradient.array, copy), "update leaves the gradient as it was")
    for move in _moves(optimizer, x0, gradients):
        _promise(np.shape(move) == shape, f"a step has the shape {shape} of the iterate")
        _promise(bool(np.isfinite(move).all()), "steps from finite gradients are finite")
    tiny = LogScaled(gradients[0].array, np.asarray(-1e4), len(shape))
    _promise(
        bool(np.isfinite(_moves(optimizer, x0, [tiny])[0]).all()),
        "a gradient below the smallest float64 gives a finite step",
    )
    data, head = sphere_tokens(3, 2, 4, 3, 0)
    whole = descend(data, head, optimizer=optimizer, n_steps=12)
    halves = descend(data, head, optimizer=optimizer, n_steps=5).resume(7)
    _promise(np.array_equal(whole.final, halves.final), "5 steps and 7 more are 12 steps")
    singles = np.stack([descend(data[j], head[j], optimizer=optimizer, n_steps=12).final for j in range(len(data))])
    _promise(_close(whole.final, singles), "a batch is a loop over its problems")


def check_risk(risk: Risk, *, n_points: int = 5, scale: float = 1.0, rng: Any = 0) -> None:
    r"""Whether the value, its logarithm, the gradient and the smoothness of a risk of one problem belong together.

    .. math:: \frac{L(x + hd) - L(x - hd)}{2h} \approx \langle \nabla L(x), d\rangle, \quad
        \|\nabla L(x) - \nabla L(y)\| \le L_{\text{smooth}} \|x - y\|

    Args:
        n_points: how many random points to try.
        scale: their typical entries.
    """
    _promise(not getattr(risk, "is_batch", False), "the contract is about a risk of one problem")
    generator = as_generator(rng)
    previous = None
    for _ in range(n_points):
        x, direction = scale * generator.standard_normal(risk.shape), generator.standard_normal(risk.shape)
        direction /= np.linalg.norm(direction)
        value = float(risk.value(x))
        _promise(np.isfinite(value), "the value at a random point is a number")
        if value > 0.0:
            _promise(_near(float(np.exp(risk.log_value(x))), value), "log_value is the logarithm of value")
        gradient = risk.gradient(x)
        _promise(gradient.array.shape == tuple(risk.shape), f"the gradient has the shape {risk.shape} of a point")
        h = 1e-6 * (1.0 + scale)
        difference = (float(risk.value(x + h * direction)) - float(risk.value(x - h * direction))) / (2.0 * h)
        slope, size = float(np.sum(gradient.value() * direction)), float(np.exp(gradient.log_norm))
        blur = DIFFERENCE_RTOL * (size + 1e-3) + 1e-9 * abs(value)
        _promise(abs(slope - difference) <= blur, f"the slope {slope:.6g} is that of differences, {difference:.6g}")
        _promise(np.asarray(risk.select(x)).dtype.kind in "iu", "selected tokens are whole numbers")
        if previous is not None:
            bound = float(np.max(risk.smoothness())) * float(np.linalg.norm(x - previous[0]))
            change = float(np.linalg.norm(gradient.value() - previous[1]))
            _promise(
                change <= bound * (1.0 + ROUNDING_RTOL) + 1e-15, "gradients change no faster than the smoothness allows"
            )
        previous = (x, gradient.value())


def check_adapter(model: Any, batch: Mapping[str, Any], *, atol: float = ATTENTION_ATOL, rng: Any = 0) -> None:
    r"""Whether the adapter of a model reads what the model computes, and its W is the one behind it.

    For every layer that the batch reaches: its attention is the model's own, at every query; what is hidden gets no attention; a batch is
    its inputs one by one. Where the family's W is read, with the factors, the bias and the cap that a `LayerReading` states,

    .. math:: \mathrm{cap}^{-1}(\text{logit}(x, z)) - b(x, z) = r_z r_x (x^\top W z + x^\top w_0 + c_z)

    for tokens x that stand in the place of one another, at several offsets where positions are rotary.

    Args:
        model: a loaded model of the adapter's family with attn_implementation="eager"; a small random one in float64 will do. Weights
            far from zero make the comparison sharp.
        batch: what it is called with, of at least two inputs and six tokens.
        atol: of attention, as the largest difference of two probabilities.
    """
    from marginlens.probe.models.adapters import adapter_for
    from marginlens.probe.models.reading import read_attention

    adapter = adapter_for(model)
    readings = {reading.layer: reading for reading in read_attention(model, batch)}
    _promise(bool(readings), "a batch reaches at least one layer")
    n_inputs = len(next(iter(batch.values())))
    for layer, own in _own_attention(adapter, batch, set(readings)).items():
        reading, name = readings[layer], f"layer {layer}"
        _promise(
            own.shape == reading.attention.shape,
            f"the attention of {name} has the shape {tuple(own.shape)} of the model's own",
        )
        rows = reading.visible.any(dim=-1)  # (B, T)
        apart = (reading.attention - own).abs().transpose(1, 2)[rows]
        worst = float("inf") if bool(apart.isnan().any()) else float(apart.max())
        _promise(worst <= atol, f"the attention of {name} is the model's own to {atol:g}, not to {worst:.2g}")
        hidden = ~reading.visible & rows[:, :, None]
        outside = own.abs().amax(dim=1)[hidden]
        _promise(
            not outside.numel() or float(outside.max()) <= atol, f"the model gives no attention to what {name} hides"
        )
        finite = reading.logits.isfinite() == reading.visible[:, None]
        _promise(
            bool((finite | ~rows[:, None, :, None]).all()),
            f"the logits of {name} are finite where it sees a token, and only there",
        )
    singles = ({key: value[k : k + 1] for key, value in batch.items()} for k in range(n_inputs))
    for k, single in enumerate(singles):
        for reading in read_attention(model, single):
            size = len(reading.logits)  # one input, or its windows
            whole, lone = readings[reading.layer].attention[k * size : (k + 1) * size], reading.attention
            far = float((whole - lone).abs().masked_fill(~reading.visible[:, None], 0.0).max())
            _promise(far <= 10 * atol, f"a batch is its inputs one by one in layer {reading.layer}, to {far:.2g}")
    if adapter.reads_weights:
        _check_key_query(adapter, batch, sorted(readings), as_generator(rng))


def _own_attention(adapter: Adapter, batch: Mapping[str, Any], layers: set[int]) -> dict[int, Any]:
    """What the attention modules themselves hand out, by layer: (B, H, T, S)."""
    import torch

    from marginlens.probe.models.reading import model_inputs

    calls: dict[int, list[Any]] = {}
    modules = {id(module): module for module in map(adapter.attention_module, range(adapter.n_layers))}

    def note(module: Any, args: Any, output: Any) -> None:
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
    """Replace some tokens of what a layer reads: the logits of the others change as W says."""
    from dataclasses import replace

    import torch

    from marginlens.probe.models.reading import record_layers

    with torch.no_grad():
        record = record_layers(adapter, batch, set(layers))
    for layer, captured in record.captured.items():
        is_cross = captured.memory is not None
        keys = captured.memory if is_cross else captured.inputs
        place = np.arange(keys.shape[1])
        changed = place if is_cross else place[place % 4 >= 2]  # queries stay, so that offsets of 1, 2 and 3 occur
        asked = np.arange(captured.inputs.shape[1]) if is_cross else place[place % 4 < 2]
        others = keys.clone()
        noise = torch.as_tensor(rng.standard_normal((len(keys), len(changed), keys.shape[2])))
        others[:, changed] = noise.to(keys) * keys.std()
        with torch.no_grad():
            before = adapter.read(layer, captured)
            after = adapter.read(layer, replace(captured, **{"memory" if is_cross else "inputs": others}))
        first, second = (_bilinear(reading)[:, :, asked][..., changed] for reading in (before, after))
        seen = before.visible.cpu().numpy()[:, asked][..., changed]
        z, apart = captured.inputs[:, asked].double().cpu().numpy(), (keys - others)[:, changed].double().cpu().numpy()
        _promise(bool(seen.any()), f"the batch of layer {layer} is long enough to compare tokens")
        offsets = asked[:, None] - changed[None, :]
        for head in range(adapter.shape(layer).n_heads):
            own = np.where(seen, first[:, head], 0.0) - np.where(seen, second[:, head], 0.0)
            for offset in np.unique(offsets).tolist() if adapter.rotary else [None]:
                map_ = adapter.key_query(layer, head, offset)
                ours = np.einsum("btd,bsd->bts", z @ map_.matrix.T + map_.bias_column, apart)
                compared = seen if offset is None else seen & (offsets == offset)
                largest = float(np.abs(np.where(seen, first[:, head], 0.0)).max())
                worst = float(np.abs(np.where(compared, own - ours, 0.0)).max()) / max(largest, 1e-300)
                at = "" if offset is None else f" at offset {offset}"
                _promise(
                    worst <= KEY_QUERY_RTOL,
                    f"W of layer {layer}, head {head}{at} gives the logits up to a constant of the query to {KEY_QUERY_RTOL:g}, "
                    f"not to {worst:.2g}",
                )


def _bilinear(reading: LayerReading) -> FloatArray:
    """(B, H, T, S) the logits without cap, bias and factors."""
    import torch

    logits = reading.logits.double()
    if reading.cap is not None:
        logits = reading.cap * torch.atanh(logits / reading.cap)
    if reading.bias is not None:
        logits = logits - reading.bias
    if reading.query_factor is not None:
        logits = logits / (reading.query_factor[..., :, None] * reading.key_factor[..., None, :])
    return np.asarray(logits.cpu().numpy())


def _moves(optimizer: Optimizer, x0: FloatArray, gradients: list[LogScaled]) -> list[FloatArray]:
    """The steps of one problem, whichever way the optimizer is called."""
    batched = bool(getattr(optimizer, "batched", False))
    state, moves = optimizer.init(x0[None] if batched else x0), []
    for gradient in gradients:
        move, state = optimizer.update(_as_called(optimizer, gradient), state)
        moves.append(np.array(move)[0] if batched else np.array(move))
    return moves


def _as_called(optimizer: Optimizer, gradient: LogScaled) -> LogScaled:
    """A gradient of one problem as descent hands it to the optimizer: with a batch axis where it is batched."""
    if not getattr(optimizer, "batched", False):
        return gradient
    return LogScaled(gradient.array[None], gradient.log_scale[None], gradient.axes)


def _keeps_states(optimizer: Optimizer, x0: FloatArray, gradients: list[LogScaled]) -> bool:
    """Whether two updates from one state agree, for a state that has seen some gradients."""
    first, second, third = (_as_called(optimizer, gradient) for gradient in gradients[:3])
    batched = bool(getattr(optimizer, "batched", False))
    _, state = optimizer.update(first, optimizer.init(x0[None] if batched else x0))
    moves = [np.array(optimizer.update(gradient, state)[0]) for gradient in (second, third, second)]
    return np.array_equal(moves[0], moves[2])


def _promise(kept: Any, words: str) -> None:
    if not kept:
        raise AssertionError(f"Broken promise: {words}.")


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= ROUNDING_RTOL * max(abs(a), abs(b))


def _close(a: FloatArray, b: FloatArray) -> bool:
    return bool(np.allclose(a, b, rtol=ROUNDING_RTOL, atol=ROUNDING_RTOL))


def _same(a: list[FloatArray], b: list[FloatArray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
