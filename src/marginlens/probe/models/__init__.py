"""Models for the probe: adapters of their families, their layers, loading, and inputs."""
