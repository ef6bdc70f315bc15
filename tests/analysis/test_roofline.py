"""What forwards must move and compute, a machine's ceilings, and shares of the limit: against figures by hand."""

import functools
import json
import math

import numpy as np
import oracle
import pandas as pd
import pytest
import torch
from chains import pair_without_tokenizer
from rich.console import Console
from screens import call
from synthetic import Rows, change_manifest
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from specbench import config
from specbench.analysis import compare, pooled, roofline
from specbench.analysis.roofline import Cost, cost, limit, other_draft
from specbench.base import environment
from specbench.config import load_method
from specbench.engine.models.cost import facts
from specbench.engine.runtimes.eager import EAGER
from specbench.measure import machine
from specbench.report import tables
from specbench.report.finding import show
from specbench.report.views.roofline import ceiling_notes, view
from specbench.report.views.roofline import limits as limits_sheet
from specbench.results import ceilings
from specbench.results.ceilings import Ceilings
from specbench.results.stored import StoredRun, runtime_of
from specbench.studies import ceilings as measuring
from specbench.studies import profile_pair

CPU = torch.device("cpu")
# Half a second for 100 bytes, and for 1000 operations: halves are exact.
SLOW = {
    "schema": 1,
    "machine": {"device": "cpu", "cpu": "abacus", "threads": 1},
    "dtype": "float32",
    "measured": "2026-01-01",
    "bandwidth": [{"bytes": size, "median": 200.0, "low": 190.0, "high": 210.0} for size in (64, 4096)],
    "products": [{"side": 8, "median": 2000.0, "low": 1900.0, "high": 2100.0}],
}


def shapes_of(kind, dtype=torch.bfloat16, **sizes):
    """A model without storage."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes), dtype=dtype)


def test_llama_8b_by_hand():
    model = shapes_of(
        "llama",
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=False,
    )
    # A layer: q and o 4096², k and v 4096 · 1024 each, three of 4096 · 14336 in the MLP.
    layer = 2 * 16_777_216 + 2 * 4_194_304 + 3 * 58_720_256
    assert layer == 218_103_808
    norms, embedding = 65 * 4096, 128256 * 4096  # two a layer and the last; 525,336,576
    assert 2 * (32 * layer + norms + 2 * embedding) == 16_060_522_496  # 16.06 GB of parameters
    info = facts(model)
    assert info["weight_bytes"] == 16_060_522_496 - 2 * embedding == 15_009_849_344
    assert info["kv_bytes_per_token"] == 2 * 32 * 8 * 128 * 2 == 131_072
    one = cost(info, 1, 0)
    # One token alone: 15.0 GFLOP in products, and 4 · 32 layers · 4096 for the one token that it reads, itself.
    assert one.operations == 2 * (32 * layer + embedding) + 4 * 32 * 4096 == 15_009_841_152
    # Weights, one row of the embedding, keys and values once written and once read, and its logits.
    assert one.bytes == 15_009_849_344 + 8192 + 2 * 131_072 + 2 * 128256
    eight = cost(info, 8, 1000)
    assert eight.bytes == 15_009_849_344 + 8 * 8192 + (1008 + 8) * 131_072 + 8 * 256_512
    assert eight.operations == 8 * 15_009_316_864 + 4 * 32 * 4096 * (
        1001 + 1002 + 1003 + 1004 + 1005 + 1006 + 1007 + 1008
    )
    last = cost(info, 8, 1000, rows=1)
    assert eight.bytes - last.bytes == 7 * 256_512 and eight.operations - last.operations == 14 * embedding


def test_tied_windows_and_groups_by_hand():
    """Gemma 2 in float32: tied, every other layer sees 4 tokens, 4 heads of 8 over 2 groups."""
    model = shapes_of(
        "gemma2",
        torch.float32,
        vocab_size=10,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=4,
        pad_token_id=None,
        tie_word_embeddings=True,
    )
    layer = 2 * 16 * 32 + 2 * 16 * 16 + 3 * 16 * 24  # q and o, k and v, MLP: 2688
    info = facts(model)
    # The embedding is the output layer as well, and counts once; four norms a layer and the last, of 16 each.
    assert info["weight_bytes"] == 4 * (2 * layer + 9 * 16 + 160) and info["lookup_bytes"] == 64
    assert (info["window"], info["window_layers"], info["kv_bytes_per_token"]) == (4, 1, 2 * 2 * 2 * 8 * 4)
    costs = cost(info, 3, 10)
    # The full layer reads 13 tokens; the other one 4, 4 and 4 of them, which are 6 different ones. Both write 3.
    assert costs.bytes == info["weight_bytes"] + 3 * 64 + 128 * (13 + 6 + 3 + 3) + 3 * 40
    assert costs.operations == 2 * 3 * (2 * layer + 160) + 4 * 32 * ((11 + 12 + 13) + (4 + 4 + 4))
    early = cost(info, 3, 2)  # the window is not full yet: 3, 4, 4 of 5 tokens
    assert early.operations - costs.operations == 4 * 32 * ((3 + 4 + 5) + (3 + 4 + 4) - 36 - 12)
    assert early.bytes - costs.bytes == 128 * (5 + 5 - 13 - 6)
    np.testing.assert_array_equal(cost(info, 1, np.array([2.0, 10.0])).bytes, [cost(info, 1, c).bytes for c in (2, 10)])


def test_learned_positions_are_looked_up():
    """OPT: a row of the positions as well as one of the tokens, biases among the weights."""
    info = facts(oracle.tiny("opt"))
    # Width 32, MLP 48, 96 tokens, float64: q, k, v, o, two of the MLP, two norms; the last norm; the output layer.
    layer = 4 * (32 * 32 + 32) + (32 * 48 + 48) + (48 * 32 + 32) + 2 * 64
    assert info["weight_bytes"] == 8 * (2 * layer + 64 + 96 * 32)
    assert info["lookup_bytes"] == 8 * (32 + 32) and info["matrix_weights"] == 2 * (4 * 1024 + 2 * 1536)


@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
@pytest.mark.parametrize("context", [1, 9])
def test_operations_are_those_that_torch_counts(architecture, context):
    model = oracle.tiny(architecture)
    cache = DynamicCache()
    with torch.no_grad():
        model(torch.arange(context)[None], past_key_values=cache)
        with FlopCounterMode(display=False) as counter:
            model(torch.tensor([[5]]), past_key_values=cache)
    assert cost(facts(model), 1, context).operations == counter.get_total_flops()


def test_unknown_forms_are_not_told():
    sizes = {"vocab_size": 10, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4, "pad_token_id": None}
    assert facts(shapes_of("mixtral", **sizes)) == {}
    frame = pd.DataFrame([{"model": "target", "context": 4, "width": 1, "median": 1.0}])
    assert roofline.table(frame, {"target": {}}, ceilings.read(SLOW)).empty


def test_which_of_the_two_binds():
    both = Ceilings(np.array([10.0, 1000.0]), np.array([50.0, 50.0]), 100.0)
    assert limit(Cost(100, 150), both) == (2.0, "bytes")
    assert limit(Cost(100, 250), both) == (2.5, "operations")


def test_bandwidth_by_size():
    """In the middle of two sizes by their logarithms; a small array is no slower than a larger one."""
    rows = [{"bytes": size, "median": speed} for size, speed in ((16, 70.0), (1, 60.0), (256, 40.0))]
    loaded = ceilings.read({"bandwidth": rows, "products": [{"median": 5.0}, {"median": 9.0}, {"median": 8.0}]})
    assert loaded.operations == 9
    assert loaded.bandwidth(np.array([0.1, 1, 4, 16, 64, 256, 9999])).tolist() == pytest.approx(
        [70, 70, 70, 70, 55, 40, 40]
    )
    assert limit(Cost(64, 0), loaded).seconds == pytest.approx(64 / 55)


class Clock(measuring.Stopwatch):
    """Work takes as long as `seconds` says, for each pass in turn."""

    seconds = staticmethod(lambda: 1.0)

    def laps(self):
        laps = super().laps()
        for forward in laps[0].forwards:
            forward.seconds = Clock.seconds()
        return laps


def test_ceilings_are_medians_of_the_fastest_way(monkeypatch):
    turn = []

    def seconds():
        turn.append(1)
        # Warm-up and trial of both ways first; then a sum takes 0.5, 1, 4, 2 and 3 s, a copy always 2.5 s.
        sums = {4: 0.5, 6: 1.0, 8: 4.0, 10: 2.0, 12: 3.0}
        return sums.get(len(turn) - 1, 2.5)

    monkeypatch.setattr(measuring, "Stopwatch", Clock)
    monkeypatch.setattr(Clock, "seconds", staticmethod(seconds))
    facts = measuring.measure(CPU, torch.float32, sizes=(4096,), sides=(8,), repeats=5)
    (row,) = facts["bandwidth"]
    assert (row["bytes"], row["how"]) == (4096, "sum")
    # The speeds are 4096 / (4, 3, 2, 1, 0.5): the median is that of 2 s, the quartiles those of 3 s and of 1 s.
    assert (row["low"], row["median"], row["high"]) == pytest.approx((4096 / 3, 2048, 4096))
    assert facts["products"][0]["median"] == pytest.approx(2 * 8**3 / 2.5)


def test_large_products_and_arrays_are_left_out(monkeypatch):
    monkeypatch.setattr(measuring, "Stopwatch", Clock)
    monkeypatch.setattr(Clock, "seconds", staticmethod(lambda: 0.02))
    monkeypatch.setattr(measuring, "free_memory", lambda device: 4 * 2048)
    steps = []
    facts = measuring.measure(CPU, torch.float32, (1024, 2048, 4096), (4, 8, 16), 3, steps.append)
    assert [row["bytes"] for row in facts["bandwidth"]] == [1024, 2048] and len(steps) == 6
    # Each is said to take 0.02 s, so one of twice the side would take 0.16 s: too long.
    assert [row["side"] for row in facts["products"]] == [4]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_was_measured_is_found_again(cache, monkeypatch):
    assert ceilings.stored(CPU, torch.float32) is None
    facts = measuring.measure(CPU, torch.float32, (2**16, 2**20), (64,), 3)
    for row in facts["bandwidth"] + facts["products"]:
        assert 0 < row["low"] <= row["median"] <= row["high"]
    path = ceilings.save(facts)
    assert path.parent == cache and path.name.startswith("ceilings-")
    monkeypatch.setattr(measuring, "measure", lambda *_: pytest.fail("measured during a run"))
    assert ceilings.stored(CPU, torch.float32) == facts == json.loads(json.dumps(facts))
    assert ceilings.stored(CPU, torch.bfloat16) is None
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    assert ceilings.stored(CPU, torch.float32) is None  # another number of threads has its own
    monkeypatch.undo()
    for damaged in ("{", "[]", "{}", json.dumps(facts | {"products": [{}]}), json.dumps(facts | {"dtype": "float64"})):
        path.write_text(damaged)
        monkeypatch.setenv("SPECBENCH_CACHE", str(cache))
        assert ceilings.stored(CPU, torch.float32) is None


def test_the_cache_folder(monkeypatch, tmp_path):
    for name in ("SPECBENCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert environment.cache_folder() == tmp_path / ".cache" / "specbench"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert str(environment.cache_folder()) == "/x/specbench"
    monkeypatch.setenv("SPECBENCH_CACHE", "/own")
    assert str(environment.cache_folder()) == "/own"


# A token of context costs 10 bytes. Target: 90 bytes and a row of 10; draft: 35 and a row of 5.
FLAT = {"output_weights": 0, "matrix_weights": 0, "logit_bytes": 0, "layers": 1, "attention_width": 1}
FLAT |= {"window": None, "window_layers": 0}
TARGET = FLAT | {"weight_bytes": 70, "lookup_bytes": 10, "kv_bytes_per_token": 10}
DRAFT = FLAT | {"weight_bytes": 30, "lookup_bytes": 5, "kv_bytes_per_token": 5}


def run_of(folder, methods, *, info=SLOW, models=None, changes=(), **plan):
    """Documents 0 and 1 have 10 and 30 prompt tokens; each method has rounds (D, A), and decodes for 100 s."""
    rows = Rows()
    for method, shapes in methods.items():
        for doc_id, prompt in ((0, 10), (1, 30)):
            prefill, *own = rows.add(method, doc_id, 100.0, shapes, prompt_tokens=prompt, tokens=[1] * 8)
            prefill |= {"member_forwards": [7]} if "member_forwards" in changes else {}
            for row in own:
                row |= {"seconds": 0.5} | dict(changes)
    run = rows.run(folder, **{"baseline": None, **plan})
    chosen = models if models is not None else {"target": TARGET, "draft": DRAFT}
    facts = {"models": {role: {"dtype": "float32", "forward": one} for role, one in chosen.items()}}
    return change_manifest(run.folder, **facts, **({"ceilings": info} if info else {}))


def share(run, method):
    summary = compare.summary(pooled.measured([run])).set_index("method")
    return summary.loc[method, "limit_share"], summary.loc[method, "limit_unknown"]


PLAIN = {"vanilla": [(0, 0)] * 4}
SPS = {"sps": [(3, 1), (3, 1)]}


def test_the_share_of_the_limit_by_hand(tmp_path):
    run = run_of(tmp_path / "a", PLAIN | SPS)
    # 4 tokens behind 10 or 30 are at a mean context of 12 and 32. A target's forward reads 70 + 10, and 13 or 33 tokens
    # of 10 bytes, and writes one: 220 and 420. At 200 bytes/s, four of each: 4.4 and 8.4 s of 200.
    assert share(run, "vanilla") == (pytest.approx((4.4 + 8.4) / 200), "")
    # Two target forwards of each: 2.2 and 4.2 s; six of the draft, 35 + 5 · 14 and 35 + 5 · 34: 3.15 and 6.15 s.
    assert share(run, "sps") == (pytest.approx((2.2 + 4.2 + 3.15 + 6.15) / 200), "")


def test_windows_shorten_the_cache(tmp_path):
    near = TARGET | {"window": 2, "window_layers": 1}
    run = run_of(tmp_path / "a", PLAIN, models={"target": near})
    assert share(run, "vanilla")[0] == pytest.approx(8 * 0.5 * (70 + 10 + 10 * 3) / 100 / 200)  # 2 read, 1 written


def test_further_members_count(tmp_path):
    pair = {"name": "trio", "description": "", "target": {"model": "a"}, "draft": {"model": "b"}}
    run = run_of(
        tmp_path / "a",
        {"cos": [(0, 0)] * 4},
        models={"target": TARGET, "draft": DRAFT, "third": DRAFT},
        changes={"member_forwards": [2]},
        pair=pair | {"members": [{"model": "b"}, {"model": "third", "role": "third"}, {"model": "a"}]},
    )
    assert list(run.plan.pair.collaboration) == ["draft", "third", "target"]
    assert share(run, "cos")[0] == pytest.approx((4.4 + 8.4 + 8 * (105 + 205) / 200) / 200)


OTHER = "other models than the pair's draft made drafts"


@pytest.mark.parametrize(
    ("methods", "options", "words"),
    [
        (SPS, {"info": None}, "not measured before the run"),
        (SPS, {"models": {"target": TARGET}}, "what a forward of its draft reads"),
        (SPS, {"models": {"target": {}, "draft": DRAFT}}, "what a forward of its target reads"),
        ({"swift": [(3, 1)]}, {}, OTHER),
        (SPS, {"settings": {"sps": {"output": "vocabtrim"}}}, OTHER),
        (SPS, {"changes": {"arbitrator_seconds": 1.0}}, "arbitrator is no model of the pair"),
        (SPS, {"changes": {"draft_forwards": None}}, "do not tell the forwards"),
    ],
)
def test_why_there_is_no_share(tmp_path, methods, options, words):
    run = run_of(tmp_path / "a", PLAIN | methods, **options)
    value, why = share(run, next(iter(methods)))
    assert math.isnan(value) and words in why


def test_which_methods_draft_with_other_models():
    """By their pages: heads, blocks, layers of the target, several drafts, and the target on a part of the prompt."""
    result = {name for name in config.names("methods") if other_draft(load_method(name))}
    assert result == {
        *("chimera", "deer", "del", "dflare", "dflash", "diffuspec", "dovetail", "eagle", "eagle3", "eagle3-chain"),
        *("eagle3-typical", "fspad", "fused", "graft", "hass", "hydra", "kangaroo", "medusa", "medusa-typical"),
        *("rapid", "rapid-pocket", "routed", "s2d", "slimspec", "swift", "taps", "taps-average", "taps-route"),
        *("specblock", "tlt-eagle3", "tlt-online", "vocabtrim"),
        *("mtp", "window"),
    }


def test_one_method_without_a_share_leaves_the_others_theirs(tmp_path):
    run = run_of(tmp_path / "a", PLAIN | {"swift": [(3, 1)]})
    assert share(run, "vanilla") == (pytest.approx(12.8 / 200), "") and math.isnan(share(run, "swift")[0])


def test_imported_runs_have_no_share(tmp_path):
    run = run_of(tmp_path / "a", PLAIN)
    run.manifest["models"] = None
    assert "imported" in share(run, "vanilla")[1]


def test_compare_has_the_column_where_it_is_asked_for(tmp_path, monkeypatch):
    folder = str(run_of(tmp_path / "a", PLAIN | SPS | {"swift": [(3, 1)]}).folder)

    def printed(*options):
        result = call("compare", folder, *options)
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    assert "limit" not in printed() and "limit_share" not in printed("--format", "csv")
    shown = printed("--limit-share")
    assert "of limit" in shown and " 6.4 " in shown and " 7.8 " in shown
    assert f"of limit is not known: swift: {OTHER}" in shown
    assert "tok/s" in shown  # next to the usual ones
    only = printed("--columns", "tau,+limit_share", "--format", "csv")
    assert only.split()[0] == "pair,sampling,task,method,tau,limit_share,limit_unknown"
    assert "- of limit: least time" in printed("--limit-share", "--format", "md")
    assert "% of limit: least time" in printed("--limit-share", "--format", "latex")
    result = call("compare", folder, "--columns", "+limit_shar")
    assert result.exit_code == 2 and "did you mean 'limit_share'" in " ".join(result.output.split())


def test_the_column_fits_80_characters(tmp_path):
    summary = compare.summary(pooled.measured([run_of(tmp_path / "a", PLAIN | SPS)]))
    text = tables.render(summary, "table", 80, ["+limit_share"])
    assert max(map(len, text.splitlines())) <= 80 and "6.4\n" in text
    assert "tok/s" in text and "discard" not in text  # which makes room for it
    unknown = summary.assign(limit_share=math.nan, limit_unknown="nobody knows")
    assert "of limit is not known: nobody knows" in tables.render(unknown, "table", 80, ["+limit_share"])


def test_recorded_forwards(tmp_path):
    shapes = {"vanilla": [(0, 0)] * 10, "sps": [(3, 1)] * 10 + [(2, 1)] * 3, "swift": [(5, 1)] * 20}
    result = roofline.recorded(run_of(tmp_path / "a", shapes))
    # 10 and 30 prompt tokens and half of 8: 24. A draft's 0.05 s are for 3 tokens; widths met fewer than 20 times are
    # left out, and so are drafts of another model.
    cells = [("target", "eager", 24, 1), ("target", "eager", 24, 4), ("draft", "eager", 24, 1)]
    assert list(result[["model", "runtime", "context", "width"]].itertuples(index=False, name=None)) == cells
    assert result["median"].tolist() == pytest.approx([0.1, 0.1, 0.05 / 3])


class Late:
    """Eager, under another name, that counts how often it was settled."""

    name = "late"

    def __init__(self):
        self.settled = 0
        self.seconds = {}

    def runner(self, model):
        return EAGER.runner(model)

    def settle(self):
        self.settled += 1

    def facts(self):
        return {}


def test_runtimes_take_turns(monkeypatch):
    class Names(profile_pair.Stopwatch):
        """The first watch (the pair's own runtime) sees 1 s a forward, the second 3 s."""

        def __init__(self, device):
            super().__init__(device)
            self.number = len(made)
            made.append(self)

        def forward(self, *given):
            order.append(self.number)
            return super().forward(*given)

        def laps(self):
            laps = super().laps()
            for one in laps[0].forwards:
                one.seconds = (1.0, 3.0)[self.number]
            return laps

    made, order = [], []
    monkeypatch.setattr(profile_pair, "Stopwatch", Names)
    late = Late()
    result = profile_pair.measure_forwards(pair_without_tokenizer(), (1, 4), (16, 64), 5, further=[late])
    assert late.settled == profile_pair.WARM  # only while nothing is timed
    passes = [order[8 + 16 * i : 24 + 16 * i] for i in range(5 + profile_pair.WARM)]  # behind the eight prefills
    assert all(pass_.count(0) == pass_.count(1) == 8 for pass_ in passes)
    assert all(len(set(pass_[:8])) == 1 for pass_ in passes)  # one behind the other, as each has weights of its own
    assert {pass_[0] for pass_ in passes} == {0, 1}  # in either order
    assert result.groupby("runtime").size().to_dict() == {"eager": 8, "late": 8}
    assert result.groupby("runtime")["median"].unique().map(list).to_dict() == {"eager": [1.0], "late": [3.0]}


def test_the_table_of_a_profile():
    pair = pair_without_tokenizer()
    forwards = profile_pair.measure_forwards(pair, (1, 16), (16, 64), 2, further=[Late()])
    by_name = {role: facts(model) for role, model in pair.models.items()}
    limits = roofline.table(forwards, by_name, ceilings.read(SLOW))
    assert len(limits) == len(forwards)
    row = limits[(limits.model == "draft") & (limits.width == 16) & (limits.context == 64)].iloc[0]
    needed = cost(by_name["draft"], 16, 64)
    assert row.limit == pytest.approx(max(needed.bytes / 200, needed.operations / 2000))
    console = Console(width=80, record=True)
    console.print(limits_sheet(limits).title)
    console.print(limits_sheet(limits).table())
    show(view(SLOW), screen=console)
    for line in ceiling_notes(SLOW):
        console.print(line)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80 and "after 64 tokens" in text and "late" in text
    assert "abacus, 1 thread, float32" in text


BUSY = machine.Diagnosis("load", "warning", "2.0 processes ran at a time", "stop other work")
IDLE = machine.Diagnosis("load", "ok", "0.1 on 2 CPUs")


def test_ceilings_of_a_busy_machine_are_not_kept(cache, pocket, monkeypatch, capsys):
    """Known ones are used all the same; asked for, they are measured and shown."""
    measured = SLOW | {"machine": ceilings.machine_facts(CPU)}
    monkeypatch.setattr(measuring, "measure", lambda device, dtype, advance: measured)
    monkeypatch.setattr(machine, "busy", lambda: BUSY)
    assert measuring.machine_ceilings(pocket) is None
    assert measuring.measure_ceilings("pocket", "cpu", "float32") == measured
    assert ceilings.stored(CPU, torch.float32) is None
    out = " ".join(capsys.readouterr().out.split())
    assert "limits are not known" in out and "not kept" in out and "stop other work" in out
    monkeypatch.setattr(machine, "busy", lambda: IDLE)
    assert measuring.machine_ceilings(pocket) == measured == ceilings.stored(CPU, torch.float32)
    monkeypatch.setattr(machine, "busy", lambda: BUSY)
    assert measuring.machine_ceilings(pocket) == measured


@pytest.mark.long
def test_the_profile_command(tmp_path, cache, pocket, monkeypatch):
    """Ceilings are measured once, and then kept; the file has them and the limits."""
    monkeypatch.setattr(machine, "busy", lambda: IDLE)
    monkeypatch.setattr("specbench.studies.profile.quick_lines", lambda folder, device: [])
    calls = []

    def quick(device, dtype, advance):
        calls.append(str(dtype))
        return SLOW | {"machine": ceilings.machine_facts(device)}

    monkeypatch.setattr(measuring, "measure", quick)
    monkeypatch.setattr(profile_pair, "FORWARDS", 2)
    few = functools.partial(profile_pair.measure_forwards, widths=(1, 4), contexts=(32,))
    monkeypatch.setattr(profile_pair, "measure_forwards", few)
    monkeypatch.setattr("specbench.report.finding.console", Console(width=80))
    out = tmp_path / "pocket.json"
    runtimes = ("--runtime", "static", "--runtime", "eager")
    few = ("--suite", "math", "--documents", "2", "--repeats", "1", "--method", "sps", "--gamma", "1,3")
    result = call("profile", *runtimes, *few, "--out", out)
    assert result.exit_code == 0, result.output
    whole = ("written: ", "at most about ")  # lines that are never wrapped; the second comes on a slow machine alone
    assert max(len(line) for line in result.output.splitlines() if not line.startswith(whole)) <= 80
    assert "ms/limit" in result.output and calls == ["torch.float32"]
    report = json.loads(out.read_text(), parse_constant=pytest.fail)
    assert report["ceilings"]["products"] == SLOW["products"]
    assert {row["runtime"] for row in report["forwards"]} == {"static", "eager"}
    for name in ("pair", "draft"):
        assert runtime_of(StoredRun(tmp_path / "pocket" / name).manifest) == "static"
    wanted = {"model", "runtime", "context", "width", "bytes", "operations", "limit", "binds"}
    wanted |= {"median", "low", "high", "fast"}
    assert {frozenset(row) for row in report["limits"]} == {frozenset(wanted)}
    assert ceilings.stored(CPU, torch.float32) == report["ceilings"]
    assert measuring.machine_ceilings(pocket) == report["ceilings"] and len(calls) == 1
    alone = call("profile", "--ceilings")
    assert alone.exit_code == 0 and len(calls) == 2 and "matrix product" in alone.output
    auto = call("profile", "--runtime", "auto")
    assert auto.exit_code == 2 and "name them: eager, static" in " ".join(auto.output.split())
    wrong = call("profile", str(tmp_path), "--ceilings")
    assert wrong.exit_code == 2 and "leave out the run folder" in " ".join(wrong.output.split())


def test_a_recorded_run_shows_its_limits(tmp_path):
    shapes = {"vanilla": [(0, 0)] * 20, "sps[gamma=2]": [(2, 1)] * 20, "sps[gamma=5]": [(5, 1)] * 20}
    run = run_of(tmp_path / "a", shapes)
    result = call("profile", str(run.folder), "--out", str(tmp_path / "read.json"))
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "read.json").read_text())
    assert {(row["model"], row["width"]) for row in report["limits"]} == {
        ("target", 1),
        ("target", 3),
        ("target", 6),
        ("draft", 1),
    }
    first = report["limits"][0]
    # Behind 20 tokens of prompt and 4 of text: 70 + 10 + 10 · (25 + 1) bytes at 200 a second.
    assert first["bytes"] == 340 and first["limit"] == pytest.approx(1.7) and first["median"] == pytest.approx(0.1)
    old = run_of(tmp_path / "b", shapes, info=None)
    result = call("profile", str(old.folder), "--out", str(tmp_path / "old.json"))
    assert result.exit_code == 0 and json.loads((tmp_path / "old.json").read_text())["limits"] == []
