"""Ingle: a local multimodal LLM engine and server on MLX."""

__version__ = "0.1.0"
