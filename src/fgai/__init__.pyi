"""The public names and where they are defined. `__init__.py` reads this file and imports a name on first use."""

from fgai import adversaries as adversaries
from fgai import auditing as auditing
from fgai import backbones as backbones
from fgai import certificates as certificates
from fgai import datasets as datasets
from fgai import explanations as explanations
from fgai import faithfulness as faithfulness
from fgai import large as large
from fgai import methods as methods
from fgai import metrics as metrics
from fgai import plots as plots
from fgai import report as report
from fgai import saved as saved
from fgai import testing as testing
from fgai.adversaries import AttackEnsemble as AttackEnsemble
from fgai.adversaries import AttentionBall as AttentionBall
from fgai.adversaries import EdgeRewiring as EdgeRewiring
from fgai.adversaries import FeatureBall as FeatureBall
from fgai.adversaries import GraphInjection as GraphInjection
from fgai.adversaries import NodeInjection as NodeInjection
from fgai.adversaries import Perturbation as Perturbation
from fgai.adversaries import TypedInjection as TypedInjection
from fgai.attending import AttentionPoint as AttentionPoint
from fgai.attention import Attention as Attention
from fgai.auditing import AuditReport as AuditReport
from fgai.auditing import Comparison as Comparison
from fgai.auditing import audit as audit
from fgai.auditing import compare as compare
from fgai.certificates import Certificate as Certificate
from fgai.certificates import Voted as Voted
from fgai.certificates import certify as certify
from fgai.errors import FGAIError as FGAIError
from fgai.explainer import AttentionExplainer as AttentionExplainer
from fgai.faithfulness import Faithfulness as Faithfulness
from fgai.faithfulness import measure_faithfulness as measure_faithfulness
from fgai.kernels.pyg import accelerated as accelerated
from fgai.methods import FGAI as FGAI
from fgai.methods import AdversarialTraining as AdversarialTraining
from fgai.methods import Fit as Fit
from fgai.methods import LayerNorm as LayerNorm
from fgai.methods import Vanilla as Vanilla
from fgai.reading import Reader as Reader
from fgai.reading import Reading as Reading
from fgai.reading import open_reader as open_reader
from fgai.reading import read as read
from fgai.tap import Tap as Tap

__all__: list[str]
__version__: str
