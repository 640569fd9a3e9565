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

_NORM = "give the norm itself, such as marginlens.norms.L1()"
_OPTIMIZER = "give the optimizer itself, such as marginlens.NormalizedGD(0.1)"
_ORDER = "read graph.levels, graph.reduced_order and graph.reaches(i, j) of a marginlens.graphs.PriorityGraph"
_RETURNED = {  # what only a function or a result gives
    "data.NamedSequences": "marginlens.data.text_windows",
    "data.NoisyLabels": "marginlens.data.flip_labels",
    "data.SequenceSplit": "marginlens.data.split_sequences",
    "dynamics.Binding": "marginlens.path",
    "dynamics.Saved": "marginlens.descend",
    "embeddings.FirstStep": "marginlens.embeddings.first_step",
    "embeddings.SingleDecisiveToken": "marginlens.embeddings.check_assumption_4",
    "graphs.CyclicSubset": "marginlens.cyclic_subset",
    "graphs.Evidence": "marginlens.graphs.ranking_evidence",
    "lab.LabProblem": "marginlens.lab.read_problem",
    "lab.Preset": "marginlens.lab.preset",
    "nexttoken.ExpansionKind": "marginlens.nexttoken.expand_path",
    "nexttoken.HeadCheck": "marginlens.nexttoken.check_head",
    "nexttoken.HeldOutScores": "marginlens.nexttoken.score_held_out",
    "nexttoken.LossCheck": "marginlens.nexttoken.check_loss",
    "nexttoken.PathExpansion": "marginlens.nexttoken.expand_path",
    "nexttoken.PredictionScore": "marginlens.nexttoken.score_held_out",
    "nexttoken.Rival": "marginlens.NextTokenAutomaton.explain",
    "nexttoken.SupportSubspace": "marginlens.nexttoken.support_subspace",
    "nexttoken.TopicChange": "marginlens.nexttoken.topic_change",
    "probe.Alarm": "marginlens.probe.find_alarms",
    "probe.AttentionStatistics": "marginlens.probe.attention_statistics",
    "probe.HeadForecast": "marginlens.probe.forecast_heads",
    "probe.HeadMargin": "marginlens.probe.head_margin",
    "probe.ImageInputs": "marginlens.probe.prepare_images",
    "probe.MarginMatch": "marginlens.probe.head_margin",
    "probe.QuerySample": "marginlens.probe.sample_queries",
    "svm.ClosedForm": "marginlens.svm.closed_form_candidate",
    "svm.token_pairs": "marginlens.att_svm",
    "sweeps.CellSummary": "marginlens.sweeps.Sweep.summary",
    "sweeps.Numbers": "marginlens.sweeps.Sweep.summary",
    "sweeps.Problem": "marginlens.sweeps.Sweep.problem",
    "sweeps.Shares": "marginlens.sweeps.Sweep.summary",
    "sweeps.SweepStatus": "marginlens.sweeps.Sweep.status",
    "theory.AttentionDetails": "marginlens.predict",
    "theory.ContextDetails": "marginlens.predict",
    "theory.EmbeddingDetails": "marginlens.theory.predict_embedding_limit",
    "theory.FactorBalance": "marginlens.theory.factor_balance",
    "theory.Forecast": "marginlens.Certificate.forecast",
    "theory.JointDetails": "marginlens.predict",
    "theory.NextTokenDetails": "marginlens.predict",
    "theory.NuclearStationarity": "marginlens.theory.nuclear_stationarity",
    "theory.Sensitivity": "marginlens.theory.attention_sensitivity",
    "theory.Smoothness": "marginlens.theory.smoothness",
}
_FIGURE = "draw with matplotlib; result.plot(ax) takes axes of your own"

# full name -> a clause that says what to use instead
REMOVED = {
    "marginlens.AttentionTextClassifier": _CLASSIFIER,
    "marginlens.text": _CLASSIFIER,
    **{f"marginlens.data.{name}": _CHUNKS for name in ("TextStream", "TokenStream")},
    **{f"marginlens.graphs.{name}": _CHUNKS for name in ("GraphSummary", "StoredGraphs")},
    **{f"marginlens.data.{name}": _NAMED for name in ("dataset", "dataset_names")},
    "marginlens.plotting.animate": "use matplotlib.animation.FuncAnimation; the lab, marginlens lab, films a run",
    **{
        f"marginlens.plotting.{name}": _FIGURE
        for name in ("BasinLook", "log_radius", "log_radius_disc", "log_radius_rings", "rim_label", "separating_line")
    },
    "marginlens.plotting.in_style": "use marginlens.plotting.paper() as a decorator",
    "marginlens.plotting.write_figure": "call the figure's savefig",
    **{f"marginlens.norms.{name}": _NORM for name in ("as_norm", "norm_named")},
    "marginlens.norms.norm_name": "use repr(norm)",
    "marginlens.norms.direction_of": "call the norm's method, norm.steepest(point)",
    **{f"marginlens.optimizers.{name}": _OPTIMIZER for name in ("as_optimizer", "optimizer_named")},
    "marginlens.probe.adapter_for": "call marginlens.probe.load_model, which finds the adapter",
    "marginlens.probe.supported_families": "the page on adapters lists the families",
    "marginlens.risk.ExcessRisk": "run.saved['excess_risk'] has one",
    "marginlens.risk.SecondOrder": "call a risk's methods",
    "marginlens.risk.RankOneTerms": "call a risk's gradient",
    "marginlens.risk.TorchRisk": "call marginlens.risk.from_torch, which makes one",
    "marginlens.risk.as_risk": "call the risk's class, such as marginlens.AttentionRisk(data, head)",
    **{f"marginlens.{name}": f"it comes with what {source} returns" for name, source in _RETURNED.items()},
    "marginlens.graphs.selected_positions": "use marginlens.graphs.pseudo_graphs(data, W, threshold)",
    **{
        f"marginlens.graphs.{name}": _ORDER
        for name in ("ComponentOrder", "component_levels", "component_order", "reduced_order")
    },
    "marginlens.engines": _EXECUTOR,
    "marginlens.data.DeviceTokens": _DEVICE,
    "marginlens.dynamics.DeviceRun": _DEVICE,
    "marginlens.svm.DeviceMargins": _DEVICE,
    **{f"marginlens.theory.{name}": _DEVICE for name in ("DeviceOptimality", "device_optimality")},
    **{
        f"{module}.PolyakStep": "use NormalizedGD(size): L - L⋆ over the squared gradient has no bound once a run leaves the best tokens"
        for module in ("marginlens", "marginlens.optimizers")
    },
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

_RUNS = "it is in the folder experiments of a checkout"
# name of a command -> a clause that says what to use instead
REMOVED_COMMANDS = {
    "sweep": "use ml.sweep in Python",
    "text": _CLASSIFIER,
    "bench": "use python -m benchmarks in a checkout",
    "encode": f"{_RUNS}, as python -m experiments.encode",
    "embeddings": f"{_RUNS}, as python -m experiments.embeddings",
    "figure": f"{_RUNS}, as python -m experiments.figure",
    "vision": f"{_RUNS}, as python -m experiments.vision",
}


def no_attribute(module: str, name: str) -> AttributeError:
    """The error for a name that a module does not have: what to use instead if it once had it."""
    if instead := REMOVED.get(f"{module}.{name}"):
        return AttributeError(f"{name} was removed from {module}: {instead}.")
    return AttributeError(f"module {module!r} has no attribute {name!r}")
