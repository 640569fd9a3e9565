"""What `marginlens bench` measures: the library beside the ordinary way, in one run on one machine."""
