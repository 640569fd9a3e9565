"""Names that were public before features were cut: each is still there, or its refusal says what to use instead."""

import importlib

import pytest

import marginlens as ml
from refusals import raised

FORMER = {
    "marginlens": """
        Adam AttentionRisk AttentionTextClassifier Certificate Cone ContextDataset ContextRisk CoordinateDescent CorrelationLoss
        CrossEntropy Exponential Frobenius GradientDescent InputError JointRisk L1 L2 LInf LogLoss Logistic Lp MarginSolution MaxRow
        MirrorDescent Muon NextTokenAutomaton NextTokenRisk Norm NormalizedGD Nuclear Optimizer Path PolyakStep Prediction Record Risk
        Sampling SequenceDataset SignDescent Spectral SquaredLoss Status SteepestDescent TokenDataset Trajectory UntilLength UntilNorm
        angle att_svm basin_cone certify correlation cyclic_correction cyclic_subset descend flow graph_svm label_svm least_distance
        ledger locally_optimal_directions ntp_svm path predict predict_limit priority_graphs relaxed_svm set_svm sweep token_optimality
        token_statistics vocabulary_svm
    """,
    "marginlens.data": """
        Characters ContextDataset DeviceTokens LabelledSequences Levels NamedSequences NoisyLabels SequenceDataset SequenceSplit
        TextStream TextTokens TokenDataset TokenStream Vocabulary Words acyclic_sequences basin_example cone_example cyclic_sequences
        dataset dataset_names embedding_tokens figure_1a figure_1b figure_1c figure_2 figure_3a figure_3b figure_5 figure_8 flip_labels
        gaussian_problems gaussian_tokens level_sequences load norm_example norm_selection_example ordered_sequences read_labelled
        read_problem read_sequences read_text save scored_tokens signal_and_noise soft_labels sphere_problems sphere_queries
        sphere_tokens split_sequences split_text_windows text_windows write_labelled write_problem write_samples write_sequences
    """,
    "marginlens.dynamics": """
        Binding Cone CyclicPart DeviceRun Path Record Sampling Saved Trajectory UntilLength UntilNorm descend flow
        matching_optimizer path
    """,
    "marginlens.embeddings": """
        FirstStep Parameters SingleDecisiveToken TokenKind TokenStatistics check_assumption_4 embedding_flow first_step
        initial_parameters loss_and_gradients mean_signed_share token_statistics
    """,
    "marginlens.engines": "Engine Gpus Processes Threads as_engine",
    "marginlens.errors": """
        CoreError EngineError InputError MissingExtra array_of_any batch_index brief_repr float_array index_array
        install_command missing_extra n_axes nonnegative_number positive_number real_array real_number require share_number
        whole_number
    """,
    "marginlens.graphs": """
        ComponentOrder CyclicSubset CyclicSubspace Evidence GraphSummary LocalRule PriorityGraph StoredGraphs component_levels
        component_order cyclic_subset cyclic_subspace from_tables graphs_of_edges is_acyclic leading_subset local_subset local_subspace
        priority_graphs pseudo_graphs ranking_evidence reduced_order selected_positions separated_tokens tied_positions to_networkx
        to_table
    """,
    "marginlens.lab": "LabProblem Preset lab_page permalink preset presets read_problem write_lab write_problem",
    "marginlens.losses": """
        CorrelationLoss CrossEntropy Exponential LabelLoss LogLoss Logistic Loss NextTokenLoss SquaredLoss SquaredProbability
    """,
    "marginlens.nexttoken": """
        CrossEntropy CyclicCorrection ExpansionKind Explanation FinitePart HeadCheck HeldOutScores LabelLoss LogLoss LossCheck
        MarkovChain NextTokenAutomaton NextTokenLoss PathExpansion PredictionScore Rival SlowLimitWarning SquaredLoss SquaredProbability
        SupportSubspace TieBreak TopicChange WindowNgram check_head check_loss cyclic_correction expand_path finite_part limit_risk
        local_correction score_held_out support_subspace topic_change
    """,
    "marginlens.norms": "Frobenius L1 L2 LInf Lp MaxRow Norm Nuclear Spectral as_norm direction_of norm_name norm_named",
    "marginlens.optimizers": """
        Adam Blockwise CoordinateDescent Decaying GradientDescent MirrorDescent Muon NormalizedGD Optimizer PolyakStep PowerDecay
        SignDescent SteepestDescent as_optimizer
    """,
    "marginlens.plotting": """
        BasinLook PlotStyle animate arrowed_path draw_graphs figure in_style log_radius log_radius_disc log_radius_rings note_at paper
        pdf png ray recorded_steps rim_label scatter_input_tokens separating_line shades slides starts svg write_figure
    """,
    "marginlens.probe": """
        Adapter Alarm AttentionMonitor AttentionRule AttentionStatistics BudgetSettings CheckpointCurves HeadDecay HeadForecast
        HeadMargin ImageInputs ImageSettings KeyBudgets KeyQueryMap LayerReading LoadedModel MarginMatch MaxMarginSettings
        ProbeDifference ProbeResult ProbeSettings QuerySample RoundingCertificate TextInputs adapter_for attention_statistics
        certify_rounding compare_models difference_page encode_texts example_sentences find_alarms find_selections forecast_heads
        head_decay head_margin key_budgets layer_margins load_model margin_shares optimizer_like output_bound prepare_images
        probe_checkpoints probe_model probe_page read_attention read_images read_run read_texts received_attention register_adapter
        relative_sparsity rotation_matrix round_keys sample_queries select_tokens soft_sparsity supported_families
    """,
    "marginlens.risk": """
        AttentionRisk ContextRisk CopyRisk ExcessRisk FactorRisk JointRisk LogScaled MarginRows MatrixRisk MultiHeadRisk MulticlassRisk
        NextTokenRisk RankOneTerms Risk SecondOrder TorchRisk as_risk from_torch logits matrix_from_vector softmax
    """,
    "marginlens.svm": """
        BilinearSolution Bracket ClosedForm ContextSolution DeviceMargins GraphConflict GraphSolution MarginSolution SetSolution Status
        att_svm bilinear_svm closed_form_candidate graph_conflict graph_svm label_svm least_distance ntp_svm relaxed_svm set_svm
        token_pairs vocabulary_svm
    """,
    "marginlens.sweeps": "CellSummary Numbers Plan Problem Shares Summary Sweep SweepStatus sweep",
    "marginlens.testing": "check_adapter check_loss check_norm check_optimizer check_risk",
    "marginlens.text": "Cleaning Snowball StopWords SubwordTokenizer TextFile TextPipeline TextVocabulary",
    "marginlens.theory": """
        AttentionDetails BasinCone Candidates Certificate Check ContextDetails DeviceOptimality EmbeddingDetails FactorBalance Forecast
        ImplicitBias JointDetails LocalOptima MinimumCertificate NextTokenDetails NuclearStationarity Outcome Prediction Sensitivity
        Smoothness TheoremVerdict TokenOptimality attention_sensitivity basin_cone best_selections certify check_assumption_a
        check_assumption_b check_assumption_c check_class_window check_lemma_13 check_polarisation check_separable
        check_steepest_theorem check_step check_strict_optimum check_theorem_5 decisive_tokens device_optimality directional_margin
        entropy_floor factor_balance globally_optimal_direction head_entropy_floor implicit_bias in_cone label_margin
        locally_optimal_directions mixing_constants nuclear_stationarity optimal_sets predict predict_copying predict_embedding_limit
        predict_limit residual_law sample_cone selected_tokens smoothness token_optimality token_ranks
    """,
}


@pytest.mark.parametrize("module", FORMER)
def test_a_former_name_exists_or_names_its_replacement(module):
    try:
        home = importlib.import_module(module)
    except ModuleNotFoundError:
        with raised(AttributeError, f"{module.rpartition('.')[2]} was removed from marginlens: "):
            getattr(ml, module.rpartition(".")[2])
        return
    for name in FORMER[module].split():
        if not hasattr(home, name):
            with raised(AttributeError, f"{name} was removed from {module}: "):
                getattr(home, name)
