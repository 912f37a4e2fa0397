"""The checks."""

from fgai.errors import NotFiniteError
from torch import Tensor


def check_finite(what: str, value: Tensor) -> None:
    if not bool(value.isfinite().all()):
        raise NotFiniteError(
            f"{int((~value.isfinite()).sum())} of {value.numel()} numbers of the {what} are not finite"
        )
