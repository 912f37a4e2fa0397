"""What can go wrong, by remedy. Every message says what was asked, what there is, and what to do."""


class FGAIError(Exception):
    """The base of every error that fgai raises on purpose."""


class TapError(FGAIError, ValueError):
    """The attention of a model cannot be read or perturbed as asked."""


class CallError(FGAIError, TypeError):
    """A model cannot be called on a graph, or returned something that is not logits."""


class MatchError(FGAIError, ValueError):
    """Two sets of edges that should correspond do not."""


class UnknownNameError(FGAIError, KeyError):
    """A name that no registry entry has."""

    def __str__(self) -> str:
        return str(self.args[0])


class DataError(FGAIError, ValueError):
    """A dataset or a saved file is missing something or is not what it claims to be."""


class OutputError(FGAIError, OSError):
    """A file or folder cannot be written: no permission, no room, or something else is there."""


class SettingError(FGAIError, ValueError):
    """A setting is outside the range in which it means something."""


class NotFiniteError(FGAIError, ValueError):
    """A number that a verdict, a certificate or a fit would rest on is NaN or infinite."""


class NotDifferentiableError(SettingError):
    """A gain that can judge but not be climbed was given to an adversary that climbs."""


class RankError(FGAIError, RuntimeError):
    """Processes that worked together died, and starting them again did not help."""


class MissingExtraError(FGAIError, ImportError):
    """An optional dependency is needed, and the message says how to install it."""
