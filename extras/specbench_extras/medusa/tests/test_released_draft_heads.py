"""Released heads of Medusa and Hydra, in the authors' layout: imported, they draft what their weights say."""

import json

import naive_draft_heads as naive
import oracle
import pytest
import torch
from gates import decode
from refusals import one_line_error
from safetensors.torch import save_file
from typer.testing import CliRunner

from specbench import config
from specbench.cli import app
from specbench.engine.models.heads import read_head
from specbench.engine.session import Unwatched
from specbench.methods.heads import hydra, medusa
from specbench_extras import importer
from specbench_extras.medusa import released

KINDS = ("medusa", "hydra")
MODULE = {"medusa": medusa, "hydra": hydra}


def assert_drafts_by(tensors, file, kind, pocket) -> None:
    """The imported heads of a file draft what these tensors say, and the text is the target's."""
    values = {**config.load_method(kind).values, "head": str(file), "nodes": 5}
    built = MODULE[kind].build(MODULE[kind].Settings(**values), pocket, Unwatched())
    assert built.inputs() == read_head(file, kind, pocket, None).hashes() and built.reach == 6 and built.lossless
    text, target = [5, 17, 900, 33, 210, 8], pocket.models["target"]
    tokens, rounds = decode(built, text, 8)
    assert tokens == oracle.greedy(target, text, 8)
    weights = {name: tensor.double() for name, tensor in tensors.items()}
    expected = naive.rounds(weights, target, released.ASSUMED[:2], [*text, *rounds[0].tokens], 1, 5)
    assert [round_.verdict.drafted for round_ in rounds[1:2]] == [one.drafted for one in expected]


def checkpoint(folder, kind, safe=False, change=None, **changes):
    """A checkpoint for the bundled target: two heads of one block, in half precision."""
    rng = torch.Generator().manual_seed(5)

    def noise(*shape):
        return (torch.randn(*shape, generator=rng) * 0.05).half()

    tensors = {}
    for head in range(2):
        parts = head + 2
        if kind == "medusa":
            tensors |= {f"{head}.0.linear.weight": noise(192, 192), f"{head}.0.linear.bias": noise(192)}
            tensors |= {f"{head}.1.weight": noise(2048, 192)}
        else:
            for name in ("linear", "res_connection"):
                tensors |= {f"hydra_mlp.{head}.0.{name}.weight": noise(192, parts * 192)}
                tensors |= {f"hydra_mlp.{head}.0.{name}.bias": noise(192)}
            tensors |= {f"hydra_lm_head.{head}.weight": noise(2048, 192), f"hydra_lm_head.{head}.bias": noise(2048)}
            tensors |= {"input_embed_fn.weight": noise(2048, 192)}
    facts = {f"{kind}_num_heads": 2, f"{kind}_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}
    if kind == "hydra":
        facts |= {"hydra_head_arch": "mlp", "grounded_heads": True, "hidden_state_offset": 0}
    if change:
        change(tensors)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**facts, **changes}))
    if safe:
        save_file(tensors, folder / f"{kind}_lm_head.safetensors")
    else:
        torch.save(tensors, folder / f"{kind}_lm_head.pt")
    return folder, tensors


@pytest.mark.parametrize("kind", KINDS)
def test_released_heads_draft_what_their_own_weights_say(tmp_path, pocket, monkeypatch, kind):
    monkeypatch.setattr(importer, "load_models", lambda *_: pocket)
    folder, tensors = checkpoint(tmp_path / "heads", kind)
    file = released.import_head(folder, "pocket", tmp_path / "h.safetensors", kind)
    head = read_head(file, kind, pocket, None)
    assert head.trained["released"] == "heads" and head.trained["assumed"]
    assert_drafts_by(tensors, file, kind, pocket)


def cut(name, rows):
    return lambda tensors: tensors.update({name: tensors[name][:rows].clone()})


@pytest.mark.parametrize(
    ("kind", "change", "facts", "words"),
    [
        ("medusa", lambda tensors: tensors.pop("1.1.weight"), {}, "holds no 2 heads of medusa with 1 blocks"),
        ("medusa", None, {"medusa_num_heads": 3}, "holds no 3 heads of medusa"),
        ("medusa", None, {"medusa_num_layers": 2}, "with 2 blocks, as its config.json says"),
        ("medusa", None, {"medusa_num_heads": 0}, "medusa_num_heads"),
        ("medusa", cut("0.0.linear.bias", 100), {}, "reads 100 values, but the target of pocket has 192"),
        ("medusa", cut("0.1.weight", 100), {}, "says 100 tokens, but pocket has 2048"),
        ("medusa", lambda tensors: tensors["0.1.weight"].fill_(torch.nan), {}, "no numbers"),
        ("medusa", lambda tensors: tensors.update(extra=torch.zeros(3)), {}, "holds no"),
        ("hydra", None, {"hydra_head_arch": "prefix-mlp"}, "hydra_head_arch is prefix-mlp, and only mlp is built here"),
        ("hydra", None, {"grounded_heads": False}, "grounded_heads is false"),
        ("hydra", None, {"hidden_state_offset": 1}, "hidden_state_offset is 1"),
    ],
)
def test_checkpoints_that_are_refused(tmp_path, pocket, monkeypatch, kind, change, facts, words):
    monkeypatch.setattr(importer, "load_models", lambda *_: pocket)
    folder, _ = checkpoint(tmp_path / "heads", kind, True, change, **facts)
    with one_line_error(words):
        released.import_head(folder, "pocket", tmp_path / "h.safetensors", kind)
    assert not (tmp_path / "h.safetensors").exists()


@pytest.mark.parametrize(
    ("kind", "told", "held", "used"), [("medusa", 2, 6, 5), ("medusa", 2, 5, 5), ("hydra", 1, 2, 1)]
)
def test_how_many_of_the_heads_of_a_file_are_used(tmp_path, pocket, monkeypatch, kind, told, held, used):
    """As in the official code: five of Medusa's, whose first config.json says 2; of Hydra's as config.json says."""
    monkeypatch.setattr(importer, "load_models", lambda *_: pocket)

    def more(tensors):
        for name in [name for name in tensors if name.startswith("1.")]:
            tensors |= {f"{head}{name[1:]}": tensors[name].clone() for head in range(2, held)}

    folder, _ = checkpoint(tmp_path / "heads", kind, change=more, **{f"{kind}_num_heads": told})
    file = released.import_head(folder, "pocket", tmp_path / "h.safetensors", kind)
    assert len(read_head(file, kind, pocket, None).trained["accuracies"]) == used


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_that_share_their_tensors(tmp_path, pocket, monkeypatch, kind):
    """The authors' `[ResBlock(...)] * n` repeats one block: in the file, each of the n has the same tensors."""
    monkeypatch.setattr(importer, "load_models", lambda *_: pocket)
    layers = 2 if kind == "medusa" else 3

    def twice(tensors):
        for head in range(2):
            if kind == "medusa":
                tensors[f"{head}.2.weight"] = tensors.pop(f"{head}.1.weight")
                for name in ("weight", "bias"):
                    tensors[f"{head}.1.linear.{name}"] = tensors[f"{head}.0.linear.{name}"]
            else:
                block = {"weight": torch.randn(192, 192) * 0.05, "bias": torch.randn(192) * 0.05}
                for name, tensor in block.items():
                    tensors |= {f"hydra_mlp.{head}.{number}.linear.{name}": tensor for number in (1, 2)}
        for tensor in list(tensors.values()):  # in float32, where nothing is copied on the way
            shared = [other for other in tensors if tensors[other] is tensor]
            tensors |= dict.fromkeys(shared, tensor.float())

    folder, tensors = checkpoint(tmp_path / "heads", kind, change=twice, **{f"{kind}_num_layers": layers})
    file = released.import_head(folder, "pocket", tmp_path / "h.safetensors", kind)
    assert_drafts_by(tensors, file, kind, pocket)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_command_line_imports_heads(tmp_path, kind):
    folder, _ = checkpoint(tmp_path / "heads", kind)
    out = tmp_path / "h.safetensors"
    outcome = CliRunner().invoke(app, ["import", f"{kind}-head", str(folder), "--pair", "pocket", "--out", str(out)])
    assert outcome.exit_code == 0 and f"{kind}.head={out}" in outcome.output and out.is_file()
