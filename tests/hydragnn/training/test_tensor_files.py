"""Tensors in files with an index: whole ones in one file, and pieces of one tensor in several."""

from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hydragnn.base.errors import InputError
from hydragnn.runs.tensor_files import FileInfo, TensorFiles, TensorIndex, TensorInfo, TensorSlice, write_tensors

TENSORS = {
    "matrix": torch.arange(12, dtype=torch.float64).reshape(3, 4) / 7,
    "single": torch.linspace(0, 1, 5),
    "half": torch.linspace(0, 1, 3).bfloat16(),
    "count": torch.tensor(7.0),
    "nothing": torch.zeros(0, 3),
    "transposed": torch.arange(6).reshape(2, 3).T,
    "flags": torch.tensor([True, False]),
}


def test_what_was_written_comes_back_bit_for_bit_through_the_index_as_json_and_in_any_program(tmp_path: Path) -> None:
    index = TensorIndex.parse(write_tensors(tmp_path, "all.safetensors", TENSORS).to_json())
    files, elsewhere = TensorFiles(tmp_path, index), load_file(tmp_path / "all.safetensors")
    assert elsewhere.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        for actual in (elsewhere[name], files.read(name, tuple(value.shape), value.dtype)):
            assert actual.dtype == value.dtype and torch.equal(actual, value)
    with pytest.raises(InputError, match=r"tensor matrix is F64 \[3, 4\], not F32 \[3, 4\]"):
        files.read("matrix", (3, 4), torch.float32)


def in_pieces(folder: Path, starts: list[int]) -> TensorIndex:
    """A 4 x 3 matrix as pieces of two rows, each in a file that another program wrote."""
    matrix, files, pieces = torch.arange(12.0).reshape(4, 3), {}, []
    for number, row in enumerate(starts):
        file = f"rank-{number}.safetensors"
        save_file({"matrix": matrix[row : row + 2].contiguous()}, folder / file)
        content = (folder / file).read_bytes()
        files[file] = FileInfo(bytes=len(content), sha256=sha256(content).hexdigest())
        pieces.append(TensorSlice(file=file, start=(row, 0), shape=(2, 3)))
    return TensorIndex(files=files, tensors={"matrix": TensorInfo(dtype="F32", shape=(4, 3), pieces=tuple(pieces))})


def test_a_tensor_in_pieces_of_several_files_is_put_together_unless_one_is_another(tmp_path: Path) -> None:
    index = in_pieces(tmp_path, [0, 2])
    actual = TensorFiles(tmp_path, index).read("matrix", (4, 3), torch.float32)
    assert torch.equal(actual, torch.arange(12.0).reshape(4, 3))
    other = write_tensors(tmp_path, "rank-1.safetensors", {"matrix": torch.zeros(6)})
    files = TensorFiles(tmp_path, index.model_copy(update={"files": {**index.files, **other.files}}))
    with pytest.raises(InputError, match=r"rank-1\.safetensors: tensor matrix is not what the index says"):
        files.read("matrix", (4, 3), torch.float32)


@pytest.mark.parametrize("starts", [[0], [2], [0, 0], [0, 1], [0, 3], [0, 2, 2]])
def test_pieces_that_do_not_make_up_the_tensor_are_refused(starts: list[int], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the pieces of tensor matrix do not make it up"):
        TensorFiles(tmp_path, in_pieces(tmp_path, starts))
