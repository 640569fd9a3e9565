"""What `marginlens bench` measures: this library beside the ordinary way, in one run on one machine."""
