"""Drafts on recorded texts: by hand, against a second implementation, and the command as a user meets it."""

import itertools
import json
from types import SimpleNamespace

import naive_lookup
import pandas as pd
import pytest
import torch
from gates import GREEDY
from hypothesis import given, settings
from hypothesis import strategies as st
from screens import call

from specbench import config, methods
from specbench.base.console import console
from specbench.config import UserError
from specbench.engine.lengths import Lengths
from specbench.engine.types import Draft
from specbench.measure.prompts import encode
from specbench.methods.lookup.pld import Settings, drafter
from specbench_extras.bench.prompts import bundled_prompts
from specbench_extras.replay import study as replaying
from specbench_extras.replay.study import ALL, Trace, by_depth, by_task, follow, read_traces, replay

CPU = torch.device("cpu")


def chain(*tokens: int) -> Draft:
    return Draft(torch.tensor(tokens, dtype=torch.long), None)


def tree(tokens: list[int], parents: tuple[int, ...]) -> Draft:
    return Draft(torch.tensor(tokens, dtype=torch.long), None, parents)


def trace(prompt: list[int], generated: list[int], task: str = "-") -> Trace:
    return Trace(prompt, generated, task, "")


def pld(**changes) -> Settings:
    return Settings(**{**config.load_method("pld").values, "gamma": 4, "whole": False, **changes})


class Branching:
    """Proposes a tree that hangs on the last two tokens alone, of a small alphabet."""

    lengths = Lengths()

    def begin(self, prompt):
        self.begun = list(prompt)

    def propose(self, context, gamma, sampling, rng):
        assert context[: len(self.begun)] == self.begun and sampling == GREEDY
        return tree(*grown(context, gamma))


def grown(context: list[int], gamma: int) -> tuple[list[int], tuple[int, ...]]:
    seed = sum(context[-2:]) + len(context) % 2
    if seed % 4 == 3:
        return [], ()
    tokens, parents = [seed % 3, (seed + 1) % 3], [-1, -1]
    for level in range(1, gamma):
        parent = parents.index(max(parents)) if level % 2 else len(tokens) - 1
        for token in range(seed % 2, 3 - level % 2):
            tokens.append(token)
            parents.append(parent)
    return tokens, tuple(parents)


def paths_of(tokens: list[int], parents: tuple[int, ...]) -> list[list[int]]:
    def path(node: int) -> list[int]:
        return [*path(parents[node]), tokens[node]] if node >= 0 else []

    return [path(node) for node in range(len(tokens))]


# By hand


@pytest.mark.parametrize(
    ("draft", "text", "start", "result"),
    [
        (chain(), [1, 2, 3], 1, (0, 0, 0)),
        (chain(5, 6), [1, 2, 3], 1, (0, 1, 2)),
        (chain(2, 6), [1, 2, 3], 1, (1, 2, 2)),
        (chain(2, 3), [1, 2, 3, 4], 1, (2, 2, 2)),
        (chain(2, 3, 9), [1, 2, 3], 1, (2, 2, 2)),  # the third level is beyond the text's end
        # 7 → 1, 2;  8 → 3 → 4, 5.
        (tree([7, 8, 1, 2, 3, 4, 5], (-1, -1, 0, 0, 1, 4, 4)), [7, 3, 4], 0, (1, 2, 3)),
        (tree([7, 8, 1, 2, 3, 4, 5], (-1, -1, 0, 0, 1, 4, 4)), [7, 2, 4], 0, (2, 2, 3)),
        (tree([7, 8, 1, 2, 3, 4, 5], (-1, -1, 0, 0, 1, 4, 4)), [8, 3, 5, 9], 0, (3, 3, 3)),
        (tree([7, 8, 1, 2, 3, 4, 5], (-1, -1, 0, 0, 1, 4, 4)), [8, 3], 0, (2, 2, 2)),
        (tree([7, 8, 1, 2, 3, 4, 5], (-1, -1, 0, 0, 1, 4, 4)), [3, 4], 0, (0, 1, 2)),
        (tree([], ()), [3, 4], 0, (0, 0, 0)),
    ],
)
def test_how_far_a_text_goes_along_a_draft(draft, text, start, result):
    assert follow(draft, text, start) == result


def test_a_text_by_hand():
    """Prompt 1 2 3 4, text 1 2 3 5 1 2 3 5 with n-grams of up to 3 and γ = 3; behind its first token:

    at 1, behind …4 1: draft 2 3 4, of which 2 3 stand; at 2, behind 1 2: 3 4 1, 3 stands; at 3: 4 1 2, nothing;
    at 4, behind 5: nothing is found; at 5, behind 5 1: 2 3 4 of the prompt, 2 3 stand; at 6, behind 5 1 2: by 1 2, and
    3 stands; at 7, behind 1 2 3: 4 1 2, nothing. Rounds: 2 3 5 from 1 on; 1 from 4 on; 2 3 5 from 5 on.
    """
    one = pld(gamma=3)
    replayed = replay("pld", drafter(one, None, CPU), 3, [trace([1, 2, 3, 4], [1, 2, 3, 5, 1, 2, 3, 5])])
    rows = replayed.positions
    assert rows.position.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert rows.drafted.tolist() == [3, 3, 3, 0, 3, 3, 3]
    assert rows.levels.tolist() == [3, 3, 3, 0, 3, 2, 1]
    assert rows.accepted.tolist() == [2, 1, 0, 0, 2, 1, 0]
    assert rows.tested.tolist() == [3, 2, 1, 0, 3, 2, 1]
    assert rows.committed.tolist() == [3, pd.NA, pd.NA, 1, 3, pd.NA, pd.NA]
    (total,) = by_task(replayed).iloc[-1:].to_dict("records")
    assert total.pop("microseconds") > 0
    assert total == pytest.approx(
        {"texts": 1, "positions": 7, "found": 6 / 7, "drafted": 18 / 7, "accepted": 6 / 7, "rounds": 3, "tau": 7 / 3}
        | {"task": ALL}
    )
    depths = by_depth(replayed)[by_depth(replayed).task == ALL].to_dict("list")
    assert (depths["depth"], depths["drafted"]) == ([1, 2, 3], [6, 5, 4])
    assert (depths["tested"], depths["accepted"]) == ([6, 4, 2], [4, 2, 0])
    assert depths["acceptance"] == pytest.approx([4 / 6, 1 / 2, 0])
    assert depths["joint"] == pytest.approx([4 / 7, 2 / 7, 0])


def test_a_round_ends_with_the_text_and_tasks_are_kept_apart():
    texts = [trace([1, 2, 3], [1, 2, 3], "a"), trace([9], [4], "a"), trace([], [5, 6], "b"), trace([3], [], "b")]
    replayed = replay("pld", drafter(pld(), None, CPU), 4, texts)
    assert replayed.texts == 4
    assert replayed.positions[["text", "task", "position"]].values.tolist() == [[1, "a", 1], [1, "a", 2], [3, "b", 1]]
    assert replayed.positions.committed.tolist() == [2, pd.NA, 1], "no token of the target's own behind the end"
    assert by_task(replayed)[["task", "texts", "rounds", "tau"]].values.tolist() == [
        ["a", 1, 1, 2.0],
        ["b", 1, 1, 1.0],
        [ALL, 2, 2, 1.5],
    ]
    assert by_depth(replayed).task.unique().tolist() == ["a", ALL], "b has no draft at all"
    with pytest.raises(UserError, match="no text has a second generated token"):
        replay("pld", drafter(pld(), None, CPU), 4, texts[1:2])


def test_what_a_drafter_remembers_is_of_rounds():
    """With the last draft tried again on a miss: at 3 a draft was made at every position, but a round begins at 1 only.

    Text 1 2 8 9 behind the prompt 1 2 1 2 7: round 1 at position 1 drafts 2 1 2 7, 2 stands and 8 is committed. The
    next round begins at 3, behind 8, which is new: it tries 2 1 2 7 again. The positions' own draft there is that of 2.
    """
    texts = [trace([1, 2, 1, 2, 7], [1, 2, 8, 2, 1, 2])]
    replayed = replay("pld", drafter(pld(ngram=1, reuse=True), None, CPU), 4, texts)
    assert replayed.positions.drafted.tolist() == [4, 4, 4, 4, 4]
    assert replayed.positions.accepted.tolist() == [1, 0, 0, 2, 1]
    assert replayed.positions.committed.tolist() == [2, pd.NA, 3, pd.NA, pd.NA]


# Against a second implementation


def checked(traces: list[Trace], drafting, gamma: int, paths) -> replaying.Replayed:
    replayed = replay("it", drafting, gamma, traces)
    for number, one in enumerate(traces, 1):
        mine = replayed.positions[replayed.positions.text == number]
        rows = list(mine[["position", "drafted", "accepted"]].itertuples(index=False, name=None))
        assert rows == [tuple(row) for row in naive_lookup.positions(one.prompt, one.generated, paths)]
        begun = mine.dropna(subset="committed")
        rounds = list(zip(begun.position.tolist(), begun.committed.tolist(), strict=True))
        assert rounds == naive_lookup.rounds(one.prompt, one.generated, paths)
        assert sum(count for _, count in rounds) == len(one.generated) - 1
    return replayed


IDS = st.lists(st.integers(0, 2), max_size=20)
TRACES = st.lists(st.tuples(IDS, st.lists(st.integers(0, 2), min_size=2, max_size=20)), min_size=1, max_size=3)


@settings(max_examples=100, deadline=None)
@given(TRACES, st.integers(1, 4), st.integers(1, 4), st.sampled_from(("first", "last")), st.booleans())
def test_lookups_on_random_texts(texts, ngram, gamma, match, whole):
    one = pld(ngram=ngram, gamma=gamma, match=match, whole=whole)
    rule = naive_lookup.Rule(ngram, 1, gamma, match, whole)

    def paths(context):
        tail = naive_lookup.continuation(context, context, rule)
        return [tail[1]] if tail else []

    checked([trace(*text) for text in texts], drafter(one, None, CPU), gamma, paths)


@settings(max_examples=100, deadline=None)
@given(TRACES, st.integers(1, 4))
def test_trees_on_random_texts(texts, gamma):
    checked([trace(*text) for text in texts], Branching(), gamma, lambda context: paths_of(*grown(context, gamma)))


def test_real_texts(pocket):
    """Bundled documents, the first few of a task as the prompt of another."""
    traces = []
    for family in ("cnndm", "humaneval", "gsm8k"):
        *before, text = (encode(pocket, prompt)[:120] for prompt in bundled_prompts(family, 4))
        traces.append(trace([i for ids in before for i in ids], text, family))
    name, drafting, gamma = replaying.find_drafter("pld", ["pld.ngram=4", "pld.whole=false"])
    assert (name, gamma) == ("pld[ngram=4,whole=False]", 10)

    def paths(context):
        result = naive_lookup.continuation(context, context, naive_lookup.Rule(4, 1, 10, "first", False))
        return [result[1]] if result else []

    result = checked(traces, drafting, gamma, paths)
    assert by_task(result).tau.iloc[-1] > 1.2 and len(result.positions) > 100


def test_a_shipped_datastore_works_too(pocket):
    _, drafting, gamma = replaying.find_drafter("rest", [], "pocket")
    (prompt,) = bundled_prompts("gsm8k", 1)
    ids = encode(pocket, prompt)

    def paths(context):
        _, fresh, _ = replaying.find_drafter("rest", [], "pocket")
        fresh.begin(context)
        draft = fresh.propose(context, gamma, GREEDY, torch.Generator())
        tokens = draft.tokens.tolist()
        return paths_of(tokens, tuple(range(-1, len(tokens) - 1)) if draft.parents is None else draft.parents)

    result = checked([trace(ids[:20], ids[20:60])], drafting, gamma, paths)
    assert (result.positions.drafted > 0).any()


# The file


def written(tmp_path, *lines) -> str:
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return str(path)


GOOD = {"prompt": [1, 2, 3], "generated": [1, 2, 3, 1, 2]}


def test_a_file_of_texts(tmp_path):
    other = {"prompt_ids": [4], "generated_ids": [5, 6], "id": 17, "task": "math", "model": "any"}
    result = read_traces(type(tmp_path)(written(tmp_path, GOOD, "", other)))
    assert result == [Trace([1, 2, 3], [1, 2, 3, 1, 2], "-", "1"), Trace([4], [5, 6], "math", "17")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 is damaged (not JSON"),
        ("[1, 2]", "line 2 is not an object; write"),
        ({"prompt": [1]}, "line 2 has no 'generated' or 'generated_ids' or 'generated_token_ids'; it has prompt"),
        (
            {"text": "a", "generated": [1]},
            "line 2 has no 'prompt' or 'prompt_ids' or 'prompt_token_ids'; it has text, generated",
        ),
        ({"prompt": "a b", "generated": [1]}, "line 2: 'prompt' must be a list of token ids; tokenise texts first"),
        ({"prompt": [1], "generated": [1, "2"]}, "line 2: 'generated' holds \"2\", which is not a token id"),
        ({"prompt": [1], "generated_ids": [1, 2.0]}, "line 2: 'generated_ids' holds 2.0, which"),
        ({"prompt": [True], "generated": [1]}, "line 2: 'prompt' holds true, which"),
        ({"prompt": [-1], "generated": [1]}, "line 2: 'prompt' holds -1, which"),
        ({"prompt": [2**40], "generated": [1]}, "line 2: 'prompt' holds 1099511627776, which"),
    ],
)
def test_a_bad_line_is_told_with_its_number(tmp_path, line, words):
    result = call("replay", "--traces", written(tmp_path, GOOD, line))
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("error: ") and words in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("lines", "arguments", "words"),
    [
        ([], [], "holds no texts"),
        ([{"prompt": [1], "generated": [1]}], [], "no text has a second generated token"),
        ([GOOD], ["--method", "sps"], "sps has no drafter that works without models; choose pld, suffix or rest"),
        ([GOOD], ["--method", "aasd"], "aasd has no drafter"),
        ([GOOD], ["--method", "pdl"], "did you mean 'pld'"),
        ([GOOD], ["--set", "pld.grams=2"], "pld has no setting 'grams', did you mean 'ngram'"),
        ([GOOD], ["--set", "rest.gamma=2"], "the method is pld; write --set pld.KEY=VALUE"),
        ([GOOD], ["--set", "pld.ngram=0"], "pld[ngram=0]: ngram"),
        ([GOOD], ["--out", "rows.csv"], "name a .parquet file"),
        ([GOOD], ["--out", "nowhere/rows.parquet"], "in a folder that exists"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, lines, arguments, words):
    result = call("replay", "--traces", written(tmp_path, *lines), *arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and words in result.stderr and result.stderr.count("\n") == 1


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    assert "there is no such file" in call("replay", "--traces", str(tmp_path / "none.jsonl")).stderr
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    assert "no text in UTF-8" in call("replay", "--traces", str(tmp_path / "bytes")).stderr


def test_the_command_prints_tables_and_writes_positions(tmp_path, monkeypatch):
    monkeypatch.setattr(console, "_width", 80)
    texts = [{**GOOD, "task": task, "id": f"{task}{i}"} for task, i in itertools.product(("math", "code"), (1, 2))]
    out = tmp_path / "rows.parquet"
    result = call("replay", "--traces", written(tmp_path, *texts), "--set", "pld.whole=false", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.split("written: ")[0].splitlines())) <= 80
    assert "pld[whole=False]" in result.stdout.splitlines()[0]
    lines = [line.split() for line in result.stdout.splitlines()]
    # Drafts 2 3 1, 3 1 2, 1 2 3 and 2 3 1: of the text's 2 3 1 2 three, three, two tokens and one stand.
    assert ["math", "2", "8", "100.0%", "3.00", "2.25", "2", "4.00"] in [line[:8] for line in lines]
    assert ["all", "tasks", "4", "16", "100.0%", "3.00", "2.25", "4", "4.00"] in [line[:9] for line in lines]
    assert ["1", "16", "16", "16", "100.0%", "100.0%"] in lines and ["3", "8", "8", "8", "100.0%", "50.0%"] in lines
    rows = pd.read_parquet(out)
    assert rows.accepted.tolist() == [3, 3, 2, 1] * 4
    assert rows.id.unique().tolist() == ["math1", "math2", "code1", "code2"]


def test_csv_and_json_have_each_task(tmp_path):
    texts = written(tmp_path, {**GOOD, "task": "math"}, {**GOOD, "task": "code"})
    facts = json.loads(call("replay", "--traces", texts, "--format", "json").stdout)
    assert facts["method"] == "pld" and facts["texts"] == 2
    assert [row["task"] for row in facts["by_task"]] == ["math", "code", ALL]
    csv = call("replay", "--traces", texts, "--format", "csv").stdout.splitlines()
    assert csv[0] == "analysis,table,row,column,value" and "replay,by_task,0,task,math" in csv


def test_only_methods_that_draft_without_a_model_have_a_drafter():
    results = []
    for name in config.names("methods"):
        module = SimpleNamespace()
        try:
            module = methods.module(config.load_method(name).method)
        except ModuleNotFoundError:
            continue
        if hasattr(module, "drafter"):
            results.append(config.load_method(name).method)
    assert set(results) <= {"pld", "rest", "sam", "suffix"} and {"pld", "suffix"} <= set(results)


def test_rounds_by_the_tokens_before_them_by_hand():
    """Two documents, the second of two texts: of each 130 tokens, then a copy of what came 4 tokens before."""
    talk = [1, 2, 3, 4] * 32
    texts = [
        Trace([*talk[:120]], [*talk[120:]], "-", "a", "one"),
        Trace([*talk[:120]], [*talk[120:]], "-", "b", "two"),
        Trace([*talk], [*talk[:8]], "-", "c", "two"),
    ]
    table = replaying.by_context(replay("pld", drafter(pld(ngram=1), None, CPU), 3, texts))
    assert table[["from", "to", "documents", "positions"]].to_numpy().tolist() == [[0, 128, 2, 14], [128, 256, 1, 7]]
    # Seven tokens after the first: a round of four begins after 121 tokens, one of the last three after 125.
    assert table.tau.to_list() == [7 / 2, 7 / 2] and table.rounds.to_list() == [4, 2]


TALK = [
    {"role": "user", "content": "Ann has 3 pens and Bob has 14 pens."},
    {"role": "assistant", "content": "Ann has 3 pens."},
    {"role": "user", "content": "And Bob?"},
    {"role": "assistant", "content": "Bob has 14 pens."},
]


def test_recorded_answers_are_texts_after_what_was_recorded_before(pocket, tmp_path):
    """The bundled pair has no chat template: messages are joined."""
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"id": "t", "messages": TALK}) + "\n")
    first, second = replaying.read_trajectories(path, "pocket")
    assert (first.id, second.id, second.task) == ("t, turn 0", "t, turn 1", "talk")
    before = f"{TALK[0]['content']}{TALK[1]['content']}\n\nAnd Bob?"
    assert first.prompt == encode(pocket, TALK[0]["content"]) and second.prompt == encode(pocket, before)
    decode = pocket.tokenizer.decode
    assert [decode(trace.generated) for trace in (first, second)] == ["Ann has 3 pens.", "Bob has 14 pens."]
    rows = replay("pld", drafter(pld(ngram=1), None, CPU), 4, [first, second]).positions
    assert rows.accepted.sum() > 0, "the answers repeat the question"
    assert list(rows.context - rows.position) == [
        len(trace.prompt) for trace in (first, second) for _ in trace.generated[1:]
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give one"),
        (["--trajectories", "a.jsonl", "--traces", "b.jsonl", "--pair", "pocket"], "give one"),
        (["--trajectories", "a.jsonl"], "--pair"),
        (["--trajectories", "a.jsonl", "--pair", "pocket"], "there is no file a.jsonl"),
    ],
)
def test_what_is_to_be_replayed_is_said_once(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    result = call("replay", *arguments)
    assert result.exit_code == 2 and words in result.stderr and result.stderr.count("\n") == 1, result.output


def test_ids_that_a_pair_does_not_have(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"prompt": [1, 2047], "generated": [5, 6]}\n{"prompt": [1], "generated": [5, 2048], "id": "x"}\n')
    texts = replaying.read_traces(path)
    replaying.check_ids(texts[:1], "pocket")
    with pytest.raises(UserError, match="text x has the id 2048, but pocket has 2048 tokens"):
        replaying.check_ids(texts, "pocket")
