"""What every test needs: figures that open no window."""

import matplotlib

matplotlib.use("Agg")
