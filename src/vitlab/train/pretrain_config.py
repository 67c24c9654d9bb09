"""How a model learns from images without labels: what is hidden, and what is told of it."""

from dataclasses import dataclass

from vitlab.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedPatchConfig:
    """Masked patch prediction (arXiv:2010.11929, appendix B.1.2): mean colours of patches."""

    mask: float = 0.5
    """Share of the patches that are corrupted."""
    replaced: float = 0.8
    """Part of the corrupted patches whose embedding is the mask's."""
    swapped: float = 0.1
    """Part whose embedding is that of another patch; what is left stays as it is."""

    def __post_init__(self) -> None:
        _check_mask(self.mask)
        if min(self.replaced, self.swapped) < 0 or self.replaced + self.swapped > 1 + 1e-9:
            raise ConfigError(
                f"replaced {self.replaced} and swapped {self.swapped} are not parts of one whole"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class MaeConfig:
    """A masked autoencoder (arXiv:2111.06377): pixels of patches that were left out."""

    mask: float = 0.75
    """Share of the patches that the encoder does not see."""
    decoder_width: int = 96
    decoder_depth: int = 2
    """Blocks of the decoder, which is thrown away afterwards."""
    decoder_heads: int = 3

    def __post_init__(self) -> None:
        _check_mask(self.mask)
        for name in ("decoder_width", "decoder_depth", "decoder_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)} is not at least 1")
        if self.decoder_width % self.decoder_heads or self.decoder_width % 4:
            raise ConfigError(
                f"decoder_width {self.decoder_width} does not split into {self.decoder_heads} "
                f"heads, and into 4 parts for the positions"
            )


def _check_mask(share: float) -> None:
    if not 0 < share < 1:
        raise ConfigError(f"mask {share} is not a share between 0 and 1")
