"""Public names that were removed, and what to use instead."""

from __future__ import annotations

_CLASSIFIER = "use TfidfVectorizer and LogisticRegression of scikit-learn, beside marginlens.token_statistics; examples/texts shows both"
_CHUNKS = (
    "use marginlens.priority_graphs(chunks, window=T), where chunks are arrays of ids or marginlens.data.TextTokens"
)
_NAMED = "call the dataset's own function, such as marginlens.data.figure_1b()"
_EXECUTOR = (
    "give ml.sweep a concurrent.futures.Executor, such as ThreadPoolExecutor(4) or the get_executor() of a Dask client"
)
_DEVICE = (
    'give descend, att_svm or sweep device="cuda"; their results are the same ones as on the CPU, in arrays of NumPy'
)
_FINGERPRINT = "a layer's weights do not show reliably which optimizer made them, and nothing replaces it"
_BUDGETS = "attention_statistics(q, k, rule, tolerances=(0.01,)) counts the keys that each query can do without"

# full name -> a clause that says what to use instead
REMOVED = {
    "marginlens.AttentionTextClassifier": _CLASSIFIER,
    "marginlens.text": _CLASSIFIER,
    **{f"marginlens.data.{name}": _CHUNKS for name in ("TextStream", "TokenStream")},
    **{f"marginlens.graphs.{name}": _CHUNKS for name in ("GraphSummary", "StoredGraphs")},
    **{f"marginlens.data.{name}": _NAMED for name in ("dataset", "dataset_names")},
    "marginlens.plotting.animate": "use matplotlib.animation.FuncAnimation; the lab, marginlens lab, films a run",
    "marginlens.engines": _EXECUTOR,
    "marginlens.data.DeviceTokens": _DEVICE,
    "marginlens.dynamics.DeviceRun": _DEVICE,
    "marginlens.svm.DeviceMargins": _DEVICE,
    **{f"marginlens.theory.{name}": _DEVICE for name in ("DeviceOptimality", "device_optimality")},
    "marginlens.PolyakStep": "use NormalizedGD(size): L - L⋆ over the squared gradient has no bound once a run leaves the best tokens",
    **{f"marginlens.probe.{name}": _FINGERPRINT for name in ("margin_shares", "optimizer_like")},
    **{
        f"marginlens.probe.{name}": "use marginlens.theory.factor_balance(Q, K)" for name in ("HeadDecay", "head_decay")
    },
    **{
        f"marginlens.probe.{name}": _BUDGETS
        for name in (
            "BudgetSettings",
            "KeyBudgets",
            "RoundingCertificate",
            "certify_rounding",
            "key_budgets",
            "output_bound",
            "rotation_matrix",
            "round_keys",
        )
    },
}


def no_attribute(module: str, name: str) -> AttributeError:
    """The error for a name that a module does not have: what to use instead if it once had it."""
    if instead := REMOVED.get(f"{module}.{name}"):
        return AttributeError(f"{name} was removed from {module}: {instead}.")
    return AttributeError(f"module {module!r} has no attribute {name!r}")
