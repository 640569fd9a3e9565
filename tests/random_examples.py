"""How many random examples a test draws: a few that are always the same, or a thousand new ones under `make test-random`."""

from hypothesis import HealthCheck, settings

# `--hypothesis-profile=random` chooses the second one.
SAME_EXAMPLES, NEW_EXAMPLES = "same", "random"


def register_profiles():
    shared = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile(SAME_EXAMPLES, derandomize=True, **shared)
    settings.register_profile(NEW_EXAMPLES, derandomize=False, max_examples=1_000, print_blob=True, **shared)
    settings.load_profile(SAME_EXAMPLES)


def examples(n):
    """Settings of a test that draws `n` examples, unless the profile asks for new ones and says how many."""
    return settings(max_examples=n) if settings.default.derandomize else settings()
