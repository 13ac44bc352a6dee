"""The reader against the golden packs that the TypeScript tests read too, and against runs made of them."""

import importlib
import json
import pickle
import re
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

import forebay
from forebay.crc32c import _slowly, crc32c
from forebay.plan import pack_key
from forebay.safetensors import parse_header

PACKS = Path(__file__).parents[2] / "fixtures" / "packs"
NAMES = ["with-mask", "no-mask", "with-skip"]


def golden(name: str) -> dict:
    return json.loads((PACKS / f"{name}.json").read_text())


def safetensors_bytes(metadata: dict, arrays: dict[str, np.ndarray]) -> bytes:
    names = {np.dtype("<u4"): "U32", np.dtype("u1"): "U8"}
    header, at, data = {"__metadata__": metadata}, 0, b""
    for name, array in arrays.items():
        header[name] = {"dtype": names[array.dtype], "shape": [array.size], "data_offsets": [at, at + array.nbytes]}
        data += array.tobytes()
        at += array.nbytes
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.fixture(params=NAMES)
def run_of_one_pack(request, tmp_path):
    """A run directory around a golden pack. Its plan is written here: before the pack's own batch, as many batches of
    one other row as its number asks for."""
    expected = golden(request.param)
    pack = PACKS / f"{request.param}.safetensors"
    metadata = expected["metadata"]
    batch = expected["batch"]
    own_rows = [sample["row"] for sample in expected["samples"]]
    before = list(range(100_000, 100_000 + batch))
    has_mask = any(sample.get("loss_mask") is not None for sample in expected["samples"])
    bytes_per_token = 8 + 8 * has_mask + 2 * expected["taps"] * expected["hidden"]
    tokens = [(sample["end_byte"] - sample["start_byte"]) // bytes_per_token for sample in expected["samples"]]
    options = {"taps": expected["taps"], "hidden": expected["hidden"], "loss_mask": has_mask, "metadata_bytes": None}
    # Headers are rounded to 64 bytes, so one of these gives the length that the pack has.
    for metadata_bytes in range(0, expected["header_bytes"], 64):
        options["metadata_bytes"] = metadata_bytes
        plan = safetensors_bytes(
            {"format": "forebay-plan-1", "options": json.dumps(options), "skip_reasons": "empty,over-max-tokens"},
            {
                "rows": np.array(before + own_rows, "<u4"),
                "tokens": np.array([1] * batch + tokens, "<u4"),
                "batch_start": np.array([*range(batch + 1), batch + len(own_rows)], "<u4"),
                "skipped_rows": np.array([7], "<u4"),
                "skipped_reasons": np.array([1], "u1"),
            },
        )
        if forebay.plan.Plan(plan, "plan")._layout(batch)[0] == expected["header_bytes"]:
            break
    (tmp_path / "plan").write_bytes(plan)
    record = {
        "format": "forebay-run-1",
        "run_id": metadata["identity"],
        "files": {"plan": "plan"},
        "numbering": {"blocks": [int(tap) for tap in metadata["taps"].split(",")]},
    }
    (tmp_path / "run.json").write_text(json.dumps(record))
    key = tmp_path / pack_key(batch)
    key.parent.mkdir(parents=True)
    shutil.copy(pack, key)
    key.chmod(0o644)
    return f"file:{tmp_path}", expected, key


def test_every_sample_of_a_golden_pack_is_read_by_its_range_and_equals_its_json(run_of_one_pack):
    address, expected, _ = run_of_one_pack
    run = pickle.loads(pickle.dumps(forebay.open(address)))
    assert run.taps == [int(tap) for tap in expected["metadata"]["taps"].split(",")]
    for golden_sample in expected["samples"]:
        row = golden_sample["row"]
        if golden_sample["skipped"] is not None:
            with pytest.raises(forebay.Skipped, match=f"row {row}: no engine could do it"):
                run[row]
            continue
        for sample in (run[row], run.read(row, check=True)):
            assert sample.token_ids.tolist() == golden_sample["token_ids"]
            assert (sample.loss_mask is None) == (golden_sample["loss_mask"] is None)
            if sample.loss_mask is not None:
                assert sample.loss_mask.tolist() == golden_sample["loss_mask"]
            assert sample.states.shape == (golden_sample["tokens"], expected["taps"], expected["hidden"])
            assert sample.states.reshape(-1).tolist() == golden_sample["hidden_states_bits"]


def test_tensors_are_the_same_bits_and_floats_the_same_numbers(run_of_one_pack):
    import torch

    address, expected, _ = run_of_one_pack
    row = next(sample["row"] for sample in expected["samples"] if sample["skipped"] is None)
    sample = forebay.open(address)[row]
    tensors = sample.tensors()
    assert tensors["hidden_states"].dtype == torch.bfloat16
    assert tensors["hidden_states"].view(torch.int16).numpy().view(np.uint16).tolist() == sample.states.tolist()
    assert np.array_equal(tensors["hidden_states"].float().numpy(), sample.float32())
    assert tensors["token_ids"].dtype == torch.int64


def test_a_changed_byte_is_found_by_check(run_of_one_pack):
    address, expected, key = run_of_one_pack
    sample = next(sample for sample in expected["samples"] if sample["skipped"] is None)
    data = bytearray(key.read_bytes())
    data[sample["end_byte"] - 1] ^= 1
    key.write_bytes(data)
    run = forebay.open(address)
    run[sample["row"]]
    with pytest.raises(forebay.Corrupt, match="are not those that were stored"):
        run.read(sample["row"], check=True)


def test_a_cut_pack_and_a_zeroed_sample_are_corrupt_without_check(run_of_one_pack):
    address, expected, key = run_of_one_pack
    done = [sample for sample in expected["samples"] if sample["skipped"] is None]
    data = bytearray(key.read_bytes())
    data[done[0]["start_byte"] : done[0]["end_byte"]] = bytes(done[0]["end_byte"] - done[0]["start_byte"])
    key.write_bytes(data)
    run = forebay.open(address)
    with pytest.raises(forebay.Corrupt):
        run[done[0]["row"]]
    key.write_bytes(data[: done[-1]["end_byte"] - 1])
    with pytest.raises(forebay.Corrupt, match="expected .* bytes, found"):
        run[done[-1]["row"]]


def test_rows_that_are_not_there_say_why(run_of_one_pack):
    address, expected, key = run_of_one_pack
    run = forebay.open(address)
    with pytest.raises(IndexError, match="no row 99"):
        run[99]
    with pytest.raises(IndexError):
        run[-1]
    with pytest.raises(forebay.Skipped, match="left out by the plan: over-max-tokens"):
        run[7]
    key.unlink()
    with pytest.raises(FileNotFoundError, match="is not there yet"):
        run[expected["samples"][0]["row"]]


def test_the_dataset_is_map_style_and_works_in_worker_processes(run_of_one_pack):
    import torch

    from forebay.dataset import HiddenStates

    address, expected, _ = run_of_one_pack
    rows = [sample["row"] for sample in expected["samples"] if sample["skipped"] is None]
    dataset = HiddenStates(forebay.open(address), rows)
    assert len(dataset) == len(rows)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    for row, item in zip(rows, loader, strict=True):
        wanted = forebay.open(address)[row].tensors()
        assert item.keys() == wanted.keys()
        assert all(torch.equal(item[name], wanted[name]) for name in wanted)


def test_no_run_a_newer_run_and_a_strange_address_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no run\.json"):
        forebay.open(f"file:{tmp_path}")
    (tmp_path / "run.json").write_text('{"format": "forebay-run-2"}')
    with pytest.raises(ValueError, match="found forebay-run-2: use a newer forebay"):
        forebay.open(f"file:{tmp_path}")


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x00" * 8, struct.pack("<Q", 2**62) + b"{}", struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 9) + b'{"a":1}  '],
)
def test_a_header_that_lies_is_a_value_error(raw):
    with pytest.raises(ValueError, match="x: "):
        parse_header(raw, "x")


def test_the_slow_checksum_is_the_fast_one():
    assert _slowly(b"123456789") == 0xE3069283 == crc32c(b"123456789")


def test_a_run_has_a_length_and_tells_what_it_is(run_of_one_pack):
    address, expected, _ = run_of_one_pack
    run = forebay.open(address)
    rows = expected["batch"] + len(expected["samples"])
    assert len(run) == rows == len(run.rows)
    taps = expected["metadata"]["taps"]
    assert repr(run) == f"<forebay.Run {address}: {rows:,} rows, taps {taps}, hidden {expected['hidden']}>"


def test_a_run_is_not_iterated_by_rows_that_count_from_zero(run_of_one_pack):
    with pytest.raises(TypeError, match="not iterable"):
        iter(forebay.open(run_of_one_pack[0]))


def test_a_directory_is_opened_by_its_path_its_file_address_or_its_file_url(run_of_one_pack, monkeypatch):
    address, expected, key = run_of_one_pack
    path = Path(address.removeprefix("file:"))
    monkeypatch.chdir(path.parent)
    for same in [path, str(path), path.name, f"./{path.name}", f"file:{path.name}", f"file://{path}"]:
        assert forebay.open(same).record["run_id"] == expected["metadata"]["identity"]


@pytest.mark.parametrize("address", ["gs://bucket/run", "s3:/bucket/run", "https://host/bucket/run", "hf://me/run"])
def test_an_address_of_another_kind_is_refused_and_no_directory_of_that_name_is_looked_for(address):
    with pytest.raises(ValueError, match="expected s3://bucket/prefix/name or a directory, found "):
        forebay.open(address)


def test_what_needs_a_package_that_is_not_there_says_what_to_install(run_of_one_pack, monkeypatch):
    address, expected, _ = run_of_one_pack
    sample = forebay.open(address)[next(one["row"] for one in expected["samples"] if one["skipped"] is None)]
    for name in ("torch", "boto3", "forebay.dataset"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match="a sample as tensors needs torch: .* -m pip install torch"):
        sample.tensors()
    monkeypatch.delitem(sys.modules, "forebay.dataset")
    with pytest.raises(ModuleNotFoundError, match="a sample as tensors needs torch: .* -m pip install torch"):
        importlib.import_module("forebay.dataset")
    with pytest.raises(ModuleNotFoundError, match="reading from S3 needs boto3: .* -m pip install boto3"):
        forebay.open("s3://bucket/prefix/name")


@pytest.mark.parametrize("run_of_one_pack", ["with-mask"], indirect=True)
def test_the_examples_of_the_readme_run_as_they_stand_there(run_of_one_pack, tmp_path_factory, monkeypatch, capsys):
    address, expected, _ = run_of_one_pack
    directory = tmp_path_factory.mktemp("work")
    (directory / "demo-run").mkdir()
    (directory / "demo-run/demo").symlink_to(address.removeprefix("file:"))
    monkeypatch.chdir(directory)
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    said = []
    for example in examples:
        exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
        said.append(capsys.readouterr().out)
    assert len(said) == 3
    assert f"hidden {expected['hidden']}>" in said[0] and "torch.bfloat16" in said[1]
    # Of six rows the packs of three are not there.
    assert said[2].endswith("3 rows read, 3 are not there yet, 0 were skipped\n")
