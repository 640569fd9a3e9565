"""What every test needs: figures that open no window, and random examples that neither time nor chance decides."""

import os
import signal
from contextlib import suppress

import matplotlib

matplotlib.use("Agg")

with suppress(ImportError):
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "any machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("any machine")

os.environ.setdefault("MARGINLENS_QUIET", "1")  # no word on compiling in the output of commands
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as a shell starts what runs in the background: Ctrl-C is tested all the same
    signal.signal(signal.SIGINT, signal.default_int_handler)
