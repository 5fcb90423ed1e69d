"""Stores of graphs: writing, reading, splitting, normalising and packing."""

if __name__ == "datasets":
    raise ImportError(
        "this folder is hydragnn.datasets, not the package datasets; import hydragnn.datasets, and do not put the checkout "
        "itself before site-packages on the path"
    )

from hydragnn.datasets.access import StoreDataset
from hydragnn.datasets.build import build_store
from hydragnn.datasets.disk import DiskStore, open_store
from hydragnn.datasets.fit import fit_normalisation, joint_scale
from hydragnn.datasets.formats.engine import StoreEngine
from hydragnn.datasets.formats.memory import MemoryStore
from hydragnn.datasets.loader import Loader
from hydragnn.datasets.normalisation import Normalisation, Scale, normalisation_from_json, normalise, reference_sums
from hydragnn.datasets.packing import Budget, pack, share_of
from hydragnn.datasets.settings import BatchSettings, DataSettings, SplitSettings
from hydragnn.datasets.sources.base import BuildSettings, Make, OwnBuild
from hydragnn.datasets.sources.fields import CoarseningSettings, FieldSettings
from hydragnn.datasets.sources.registry import read_build_settings, rule_of
from hydragnn.datasets.sources.table_files import find_files
from hydragnn.datasets.split import Split, make_split
from hydragnn.datasets.store import Column, GraphStore, Sizes, changed_sentence, is_graph_store, read_checked
from hydragnn.datasets.survey import FieldSummary, Survey
from hydragnn.datasets.tools import (
    SizeSummary,
    StoreInfo,
    check_graphs,
    check_store,
    convert_store,
    examine_store,
    files_are_whole,
    store_info,
)
from hydragnn.datasets.views import WithAbsent, WithoutEdges, disk_store, without_edges
from hydragnn.datasets.writer import StoreWriter, finish_store
