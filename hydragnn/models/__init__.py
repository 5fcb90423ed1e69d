"""Models: encoders, heads, derivatives, and their files."""

from hydragnn.architectures import GraphStatistics, ModelSettings
from hydragnn.models.branched import BranchedModel, build_branched, build_from_description, build_model, check_shared
from hydragnn.models.checks import check, check_cuttable
from hydragnn.models.description import ModelDescription, degree_statistics, description_from_json, make_description
from hydragnn.models.distributions import Categorical, Distribution, Normal, Number, Point, concatenate_distributions
from hydragnn.models.graph_model import GraphModel
from hydragnn.models.heads import HeadSettings, parse_head
from hydragnn.models.saving import load_graph_model, read_description, save_model
from hydragnn.models.target import Target, target_from_json
from hydragnn.models.trained import TrainedModel, load_model
