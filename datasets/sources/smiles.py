"""Molecules as SMILES in a column of a table, read by RDKit."""

from collections.abc import Iterator
from functools import partial
from operator import methodcaller
from typing import Any, ClassVar, Literal

import numpy as np

from hydragnn.base.errors import InputError, as_missing
from hydragnn.datasets.sources.base import BuildSettings, Make
from hydragnn.datasets.sources.fields import FieldSettings
from hydragnn.datasets.sources.table_files import read_table, stack_rows, table_column
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Location
from hydragnn.graphs.texts import NAME_KEYS

OF_ATOMS = {"atomic_numbers": "GetAtomicNum", "formal_charge": "GetFormalCharge", "aromatic": "GetIsAromatic"}
KEYS = {
    "node": {
        **{key: methodcaller(name) for key, name in OF_ATOMS.items()},
        "hydrogens": methodcaller("GetTotalNumHs", includeNeighbors=True),
    },
    "edge": {"bond_order": methodcaller("GetBondTypeAsDouble")},
}
"""Values of atoms and bonds by key, with RDKit's functions for them."""
SPECIES = FieldSettings(name="atomic_numbers", on="node", classes=119, dtype="int64")
ORDERS = FieldSettings(name="bond_order", on="edge")


class SmilesBuild(BuildSettings):
    """Molecules without positions: SMILES in a column of tables."""

    joins: ClassVar[frozenset[Location]] = frozenset(("graph",))

    kind: Literal["smiles"] = "smiles"

    smiles: str = "smiles"
    """Column with the SMILES."""

    hydrogens: bool = False
    """True where all hydrogens are nodes."""

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each row; InputError names file and row."""
        fields = {field.name: field for field in (SPECIES, ORDERS, *self.fields)}.values()
        numbers = [key for field in self.fields if field.on == "graph" for key in field.keys]
        optional = [key for field in self.fields if field.missing for key in field.keys]
        for field in self.fields:
            if field.on != "graph" and field.keys[0] not in KEYS[field.on]:
                raise InputError(f"field {field.name}: {field.on}s have {', '.join(KEYS[field.on])}; name one as key")
        build = self.model_copy(update={"fields": [*fields]})
        for path, name in self.named_files():
            table = read_table(path, numbers, optional, [self.smiles, *NAME_KEYS, *self.text_keys])
            for row, _ in enumerate([table_column(table, key, path) for key in (*numbers, self.smiles)][-1]):
                entries, where = {key: column[row] for key, column in table.items()}, f"{name}#{row}"
                yield partial(self.graph_with_texts, entries, where, partial(build._graph, entries, where))

    def _graph(self, row: dict[str, Any], name: str) -> GraphBatch:
        with as_missing("rdkit", "chemistry", "SMILES"):
            from rdkit import Chem, rdBase
        smiles = str(row[self.smiles])
        with rdBase.BlockLogs():
            molecule = Chem.MolFromSmiles(smiles)
        if len(smiles.split()) != 1 or not molecule or not all(atom.GetAtomicNum() for atom in molecule.GetAtoms()):
            raise InputError(f"{name}: {smiles!r:.80} is no SMILES of elements alone; correct it, or remove the row")
        molecule = Chem.AddHs(molecule) if self.hydrogens else molecule
        items = {"node": [*molecule.GetAtoms()], "edge": [*molecule.GetBonds()] * 2}
        values = {
            field.name: stack_rows([row[key] for key in field.keys], field)
            if field.on == "graph"
            else np.array([KEYS[field.on][field.keys[0]](one) for one in items[field.on]], field.dtype)
            for field in self.fields
        }
        pairs = [(one.GetBeginAtomIdx(), one.GetEndAtomIdx()) for one in molecule.GetBonds()]
        ends = np.array(pairs, int).reshape(-1, 2)
        senders, receivers = np.concatenate([ends, ends[:, ::-1]]).T
        return self.graph_of(None, senders, receivers, values, name=name)
