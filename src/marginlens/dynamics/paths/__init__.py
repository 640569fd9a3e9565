"""Regularisation paths: points of smallest risk in balls of growing radius."""
