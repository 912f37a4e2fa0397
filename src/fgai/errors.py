"""Errors that fgai raises. Each message states the request, the actual state and the remedy."""


class FGAIError(Exception):
    """Base class of all errors that fgai raises."""


class TapError(FGAIError, ValueError):
    """The attention of a model cannot be read or perturbed as requested."""


class CallError(FGAIError, TypeError):
    """A model cannot be called on a graph, or returned something that is not logits."""


class MatchError(FGAIError, ValueError):
    """Two sets of edges that should correspond do not."""


class UnknownNameError(FGAIError, KeyError):
    """A name that is not registered."""

    def __str__(self) -> str:
        return str(self.args[0])


class DataError(FGAIError, ValueError):
    """A graph, a dataset or a saved file is incomplete or invalid."""


class OutputError(FGAIError, OSError):
    """A file or folder cannot be written: no permission, no space left, or the path is in use."""


class SettingError(FGAIError, ValueError):
    """A setting is outside its valid range."""


class NotFiniteError(FGAIError, ValueError):
    """A number that a grade, a certificate or a fit depends on is NaN or infinite."""


class NotDifferentiableError(SettingError):
    """A non-differentiable gain was given to a gradient attack."""


class BudgetError(FGAIError, ValueError):
    """An attack does more than its budget allows."""


class RankError(FGAIError, RuntimeError):
    """Worker processes crashed, and restarts did not help."""


class MissingExtraError(FGAIError, ImportError):
    """An optional dependency is missing; the message states how to install it."""
