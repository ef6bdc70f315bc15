"""Warming up CoSpec's arbitrator: traces and labels against decoders without cache, a rule that is learned, stops."""

import dataclasses
import functools
import json
import math

import naive_cospec as naive
import numpy as np
import oracle
import pyarrow.parquet as pq
import pytest
import torch
from cases import mostly_long
from chains import Words
from command_line import call, folders, here, refused  # noqa: F401  (here: every test works in an empty folder)
from cospec_models import slow
from gates import DEVICE, GREEDY, pair
from jobs import stopping

from specbench import config
from specbench.config import UserError
from specbench.engine.generate import Ending, Limits, until_end
from specbench.engine.models.pair import Pair
from specbench.methods.chains import sps
from specbench.methods.collaborative.cospec import Block
from specbench.methods.collaborative.cospec_arbitrator import find_arbitrator, load_own, own_parameters, with_backbone
from specbench.plan import Plan
from specbench.training.checkpoint import load_checkpoint
from specbench.training.documents import Document, training_documents
from specbench.training.recipe import load_recipe
from specbench_extras.cospec import traces as cospec_traces
from specbench_extras.cospec import train as module
from specbench_extras.cospec.fit import WarmUp, predictions, schedule
from specbench_extras.cospec.reading import Query, Reading, all_logits
from specbench_extras.cospec.recipe import Sft
from specbench_extras.cospec.rollouts import Text, Turn
from specbench_extras.cospec.traces import ContextJudge, Lesson, RolloutJudge, need_checkable, trace_all, within
from specbench_extras.judge.logistic import auroc

EVERY = mostly_long("architecture", ("llama", "opt", "gemma2"), ("llama",))
GAMMA, LENGTHS = 4, (30, 17, 5, 24)


def recipe(**changes) -> Sft:
    return Sft(**{**load_recipe("cospec-sft", []).values, **changes})


def worth(text: str) -> float:
    """Something that hangs on every token of an answer."""
    return float(sum((i % 7 + 1) * int(word) for i, word in enumerate(text.split())) % 3 == 0)


@functools.cache
def documents() -> tuple[Document, ...]:
    prompts = [one[:n] for one, n in zip(oracle.prompts(4, length=12, seed=11), (12, 3, 9, 7), strict=True)]
    return tuple(
        Document("made", i, prompt, f"hash of {i}", (), length, worth)
        for i, (prompt, length) in enumerate(zip(prompts, LENGTHS, strict=True))
    )


@functools.cache
def slow_target(architecture):
    return naive.copy.deepcopy(pair(architecture)[0]).cpu()


@functools.cache
def end_of(architecture: str) -> int:
    """A token that ends the first text early, and is not the first of any."""
    text = oracle.greedy(slow_target(architecture), documents()[0].prompt, 30)
    return next(token for i, token in enumerate(text) if i > 14 and token not in text[:i])


def both(architecture: str) -> Pair:
    target, draft = pair(architecture)
    return Pair("tiny", {"target": target, "draft": draft, "arbitrator": draft}, Words(end_of(architecture), 96))


def expected(architecture: str, document: Document):
    """Speculative decoding that keeps nothing, round by round: (context, block, mismatches within the text)."""
    end, results = end_of(architecture), []
    rounds = slow(architecture).rounds(document.prompt, document.max_new_tokens, GAMMA, lambda *_: lambda i: False)
    text = [*document.prompt, slow(architecture).target(tuple(document.prompt))]
    for round_ in rounds:
        answer = text[len(document.prompt) :]
        if end in answer or len(answer) >= document.max_new_tokens:
            break
        inside = []
        for i in round_.mismatches:
            branch = [*answer, *round_.drafted[: i + 1]]
            if len(branch) <= document.max_new_tokens and end not in branch[:-1]:
                inside.append(i)
        results.append((len(text), [*round_.drafted, *round_.targets], inside))
        text = [*text, *round_.committed]
    return results, text


def finished(architecture: str, document: Document, branch: list[int]) -> str:
    """The answer that the target makes of a beginning, without cache."""
    branch = branch + oracle.greedy(
        slow_target(architecture), document.prompt + branch, document.max_new_tokens - len(branch)
    )
    ends = end_of(architecture)
    return Words().decode(branch[: branch.index(ends)] if ends in branch else branch)


class Noted:
    """A judge that labels by what it is shown."""

    name = "noted"

    def labels(self, document, text, asked):
        return [
            [(turn.block.drafted[i] % 5) / 8 for i in positions]
            for turn, positions in zip(text.turns, asked, strict=True)
        ]


def traced(architecture, folder, judge=None, settings=None, **changes) -> list[Lesson]:
    facts = {"gamma": GAMMA, "seed": 0, "documents": documents(), "advance": lambda count: None, **changes}
    models, settings = both(architecture), settings or recipe()
    judge = judge or RolloutJudge(models, settings)
    given = [facts[name] for name in ("gamma", "seed")]
    return trace_all(models, facts["documents"], judge, settings, *given, folder, facts["advance"])


# Traces


@EVERY
def test_traces_and_labels_are_those_of_decoders_without_cache(architecture, tmp_path):
    settings = recipe(both_right=0.8, both_wrong=0.3)
    lessons = traced(architecture, tmp_path / "t", settings=settings)
    seen, cut = set(), False
    for document, lesson in zip(documents(), lessons, strict=True):
        rounds, text = expected(architecture, document)
        assert lesson.document == document.name and lesson.reading.tokens == text
        wanted = [round_ for round_ in rounds if round_[2]]
        assert [(round_.context, round_.block, round_.positions) for round_ in lesson.reading.rounds] == wanted
        labels = []
        for context, block, positions in wanted:
            before = text[len(document.prompt) : context]
            for i in positions:
                ours, theirs = (
                    worth(finished(architecture, document, [*before, *block[:i], token]))
                    for token in (block[i], block[GAMMA + i])
                )
                labels.append({(1, 0): 1.0, (0, 1): 0.0, (1, 1): 0.8, (0, 0): 0.3}[int(ours), int(theirs)])
        assert lesson.labels == pytest.approx(labels)
        seen.update(labels)
        cut |= any(round_[2] != [i for i in range(GAMMA) if round_[1][i] != round_[1][GAMMA + i]] for round_ in rounds)
    assert len(seen) >= 3 and (cut or architecture == "opt"), "all kinds of labels, and mismatches behind an end"


def test_what_lies_behind_an_end_is_left_out():
    """Prompt of 3, two tokens so far, room for five: mismatches 0 to 2; an end at 1 leaves 0 and 1."""
    drafted, mismatches = [5, 6, 7, 8, 9, 10], [0, 1, 2, 3, 5]
    block = Block(drafted, [d + 20 * (i in mismatches) for i, d in enumerate(drafted)], mismatches, torch.zeros(12))
    turn = Turn(5, block, [], 1, True, [], 1)

    def inside(length, *ends):
        return within(turn, Document("made", 0, [1, 2, 3], "", (), length, worth), frozenset(ends))

    assert inside(5) == [0, 1, 2] and inside(6) == [0, 1, 2, 3] and inside(8) == mismatches
    assert inside(8, 6) == [0, 1] and inside(3, 6) == [0] and inside(8, 5) == [0] and inside(8, 99) == mismatches
    assert inside(8, 26) == mismatches, "an end that only the target says does not end the draft's branch"


def test_labels_by_hand():
    models = both("llama")
    judge = RolloutJudge(models, recipe(both_right=0.9, both_wrong=0.4))
    cases = {(1.0, 0.0): 1.0, (0.0, 1.0): 0.0, (1.0, 1.0): 0.9, (0.0, 0.0): 0.4}
    assert {pair_: judge._label(*pair_) for pair_ in cases} == cases
    shipped = recipe()
    assert (shipped.both_right, shipped.both_wrong) == (1, 0.5)


def test_branches_that_have_ended_are_not_gone_on_with():
    """By the end token, by the length, and by a stop string; the score is of the text as a task sees it."""
    end, heard = end_of("llama"), []
    models = both("llama")
    judge = RolloutJudge(models, recipe())
    document = Document("made", 0, [1, 2, 3], "", ("40 41",), 6, lambda text: heard.append(text) or 1.0)
    judge.scores(document, [[8, end], [8] * 6, [8, 40, 41], [8] * 9])
    assert sorted(heard) == sorted({"8", "8 8 8 8 8 8", "8 "})
    heard.clear()
    (result,) = judge.scores(dataclasses.replace(document, until=()), [[8, 9]])
    assert heard == [finished("llama", document, [8, 9])] and result == 1.0
    assert judge.scores(document, []) == []


def test_a_branch_is_read_no_further_than_its_text_may_be(monkeypatch):
    """A long branch next to a short one: a model with learned positions has none behind the longest text."""
    target = pair("opt")[0]
    most, longest = target.config.max_position_embeddings, []
    document = Document("made", 0, oracle.prompts(1, length=12)[0], "", (), most - 12, lambda text: 1.0)
    judge = RolloutJudge(Pair("tiny", {"target": target}, Words(size=96)), recipe())
    real = target.forward

    def noted(*arguments, **options):
        cache = options["past_key_values"]
        longest.append(cache.get_seq_length() + arguments[0].shape[1])
        return real(*arguments, **options)

    monkeypatch.setattr(target, "forward", noted)
    assert judge.scores(document, [[5], [6] * (most - 30)]) == [1.0, 1.0]
    assert max(longest) <= most


def test_a_judge_model_is_shown_each_turn():
    shown = []

    class Model:
        def labels(self, *what):
            shown.append(what)
            return [0.25] * len(what[3])

    drafted = [5, 6, 7]
    turns = [Turn(4, Block(drafted, [5, 60, 7], [1], torch.zeros(6)), [], 1, True, [], 2)]
    turns.append(Turn(6, Block(drafted, drafted, [], torch.zeros(6)), [], 0, False, [], 4))
    text = Text([1, 2, 3], Ending(Limits(99, frozenset()), Words().decode), [10, 11, 12, 13], turns)
    judge = ContextJudge(Model(), "a model")
    assert judge.labels(documents()[0], text, [[1], []]) == [[0.25], []] and judge.name == "a model"
    assert shown[0] == ([1, 2, 3, 10], drafted, [5, 60, 7], [1])
    assert len(shown) == 1 or shown[1][3] == []


def test_a_stopped_tracing_goes_on_and_gives_the_same_files(tmp_path, monkeypatch):
    monkeypatch.setattr(cospec_traces, "ROWS", 2)
    settings = recipe(answers=2, temperature=1)
    counts = []
    whole = traced("llama", tmp_path / "whole", Noted(), settings, advance=counts.append)
    assert counts == [2] * 4 and len(whole) == 8
    assert [one.reading for one in whole[:4]] != [one.reading for one in whole[4:]], "another draw"

    with pytest.raises(KeyboardInterrupt):
        traced("llama", tmp_path / "stopped", Noted(), settings, advance=stopping(2))
    first = {path: path.stat().st_mtime_ns for path in (tmp_path / "stopped").iterdir()}
    assert len(first) == 2
    assert traced("llama", tmp_path / "stopped", Noted(), settings) == whole
    assert all(path.stat().st_mtime_ns == time for path, time in first.items())
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "stopped" / path.name).read_bytes() == path.read_bytes()


def test_traces_made_otherwise_or_damaged_are_refused(tmp_path):
    folder = tmp_path / "traces"
    traced("llama", folder)
    others = {
        "seed": {"seed": 1},
        "gamma": {"gamma": 5},
        "judge": {"judge": Noted()},
        "temperature": {"settings": recipe(temperature=1)},
        "both_right": {"settings": recipe(both_right=0.5)},
        "both_wrong": {"settings": recipe(both_wrong=0.1)},
        "documents": {"documents": documents()[:3]},
        "draft": {"models": "opt"},
    }
    for what, changes in others.items():
        with pytest.raises(UserError, match=rf"collected with different .*{what}.*; delete that folder, or"):
            traced(changes.pop("models", "llama"), folder, **changes)
    traced("llama", folder, settings=recipe(learning_rate=1, epochs=9))  # has no part in it
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"is damaged .* delete it"):
        traced("llama", folder)


def calibration(pocket, task, count):
    tasks, pair = (config.TaskLine(task=task),), config.load_pair("pocket")
    plan = Plan(pair=pair, methods=(), baseline=None, suite=task, tasks=tasks, limit=count)
    return training_documents(plan, pocket, 51, [f"{task}:calibration"])


@pytest.mark.long
def test_pocket_is_traced_as_speculative_sampling_decodes_it(pocket, tmp_path):
    """γ = 25, float32: what `specbench run --method sps` does, one text at a time; labels by transformers."""
    some = calibration(pocket, "pocket_math500", 8)
    settings = recipe(both_right=0.75, both_wrong=0.25)
    judge = RolloutJudge(pocket, settings)
    lessons = trace_all(pocket, some, judge, settings, 25, 0, tmp_path / "traces", lambda count: None)
    spec = config.load_method("sps").values
    method = sps.build(sps.Settings(**{**spec, "gamma": 25}), pocket, None)
    labelled = 0
    for document, lesson in zip(some, lessons, strict=True):
        ending = cospec_traces.new_ending(pocket, document)
        length, wanted = len(document.prompt), []
        for one in until_end(method.rounds(document.prompt, GREEDY, torch.Generator()), ending):
            if one.verdict is not None and one.verdict.drafted:
                drafted, targets = one.verdict.drafted, one.verdict.targets
                mismatches = [i for i, (d, t) in enumerate(zip(drafted, targets, strict=True)) if d != t]
                turn = Turn(length, Block(drafted, targets, mismatches, torch.zeros(1)), [], 0, False, [], 0)
                if positions := within(turn, document, pocket.eos_ids):
                    wanted.append(Query(length, [*drafted, *targets], positions))
            length += len(one.tokens)
        assert lesson.reading.rounds == wanted
        assert lesson.reading.tokens[:length] == [*document.prompt, *ending.tokens][:length]
        labels = iter(lesson.labels)
        for asked in wanted:
            for i in asked.positions:
                label = next(labels)
                if labelled < 3:
                    answer = lesson.reading.tokens[len(document.prompt) : asked.context]
                    ours, theirs = (
                        document.score(generated(pocket, document, [*answer, *asked.block[:i], token])) > 0
                        for token in (asked.block[i], asked.block[25 + i])
                    )
                    assert label == {(1, 0): 1.0, (0, 1): 0.0, (1, 1): 0.75, (0, 0): 0.25}[int(ours), int(theirs)]
                    labelled += 1
    assert labelled == 3 and any(len(lesson.reading.rounds) > 1 for lesson in lessons)


def generated(pocket, document, branch) -> str:
    ids = torch.tensor([[*document.prompt, *branch]])
    out = pocket.models["target"].generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=document.max_new_tokens - len(branch),
        do_sample=False,
        eos_token_id=sorted(pocket.eos_ids),
        pad_token_id=0,
    )
    text = pocket.tokenizer.decode(out[0, len(document.prompt) :], skip_special_tokens=True)
    for stop in document.until:
        text = text.split(stop)[0]
    return text


@pytest.mark.parametrize("task", ("pocket_cnndm",))
def test_graded_answers_cannot_be_judged_by_rollouts(task):
    with pytest.raises(UserError, match=rf"{task}: its answers are graded \(rouge.*--judge"):
        need_checkable([Document(task, 0, [1], "", (), 9, worth)])
    need_checkable([Document("pocket_gsm8k", 0, [1], "", (), 9, worth)])


# Learning


def lessons_of_a_rule(count: int, seed: int, label=lambda d, t: float(d % 2 == 0)) -> list[Lesson]:
    """Texts with rounds of random candidates; the rule hangs on the drafted token alone, unless it is given."""
    rng, results = np.random.default_rng(seed), []
    for number in range(count):
        text, rounds, labels = rng.integers(0, 24, 20).tolist(), [], []
        for context in (6, 11, int(rng.integers(13, 21))):
            block = rng.integers(0, 24, 8).tolist()
            positions = [i for i in range(4) if block[i] != block[4 + i]]
            rounds.append(Query(context, block, positions))
            labels += [label(block[i], block[4 + i]) for i in positions]
        results.append(Lesson(f"d{number}", Reading(text, rounds), labels))
    return results


@functools.cache
def backbone():
    """A model whose states tell the tokens that they stand behind, as those of real ones do."""
    model = oracle.tiny("llama", seed=3, vocab=24)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter *= 0.1
    return model.to(DEVICE)


def settings(**changes) -> Sft:
    return recipe(**{"batch": 16, "epochs": 12, "learning_rate": 0.01, "rank": 4, "alpha": 8, "dropout": 0, **changes})


def learn(tmp_path, lessons, advance=lambda count: None, seed=0, facts=None, **changes) -> WarmUp:
    training = WarmUp(backbone(), lessons, settings(**changes), True, seed)
    training.run(tmp_path / "checkpoint.pt", facts or {"seed": seed}, advance)
    return training


def own(training: WarmUp) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in own_parameters(training.arbitrator).items()}


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.long
def test_a_rule_is_learned(tmp_path, monkeypatch):
    losses, real = [], WarmUp.learn
    monkeypatch.setattr(WarmUp, "learn", lambda self, batch: losses.append(real(self, batch)) or losses[-1])
    frozen = {name: one.clone() for name, one in backbone().state_dict().items()}
    training = learn(tmp_path, lessons_of_a_rule(80, 0))
    values = np.array(predictions(training.arbitrator, lessons_of_a_rule(30, 1), True))
    assert auroc(values[:, 1] > 0.5, values[:, 0]) > 0.95
    assert len(losses) == training.steps == 60 and losses[0] == pytest.approx(math.log(2), abs=1e-6)
    assert np.mean(losses[-5:]) < 0.4 * losses[0] and np.mean(losses[20:25]) < np.mean(losses[:5])
    assert all(torch.equal(one, frozen[name]) for name, one in backbone().state_dict().items()), (
        "the draft is untouched"
    )
    facts = module.figures_of(training.arbitrator, lessons_of_a_rule(30, 1), True)
    chance = 1 / (1 + np.exp(-values[:, 0]))
    assert facts["loss"] == pytest.approx(-np.mean(np.log(np.where(values[:, 1] == 1, chance, 1 - chance))), rel=1e-5)
    assert facts["agreement"] == pytest.approx(np.mean((chance > 0.5) == (values[:, 1] == 1)))
    share = values[:, 1].mean()
    assert facts["constant"] == pytest.approx(-share * math.log(share) - (1 - share) * math.log(1 - share))
    assert facts["mismatches"] == len(values)


def scrambled(training: WarmUp) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    return {name: 0.2 * torch.randn(one.shape, generator=rng, dtype=one.dtype) for name, one in own(training).items()}


@pytest.mark.parametrize("hybrid", (True, False))
def test_a_step_is_of_the_mean_over_mismatches(monkeypatch, hybrid):
    """However the batch is divided over forwards; soft labels count as such (Eq. 29)."""
    lessons = lessons_of_a_rule(9, 2, lambda d, t: d / 24)
    results = []
    for most in (40, 100000):
        monkeypatch.setattr("specbench_extras.cospec.reading.MICRO_TOKENS", most)
        training = WarmUp(backbone(), lessons, settings(), hybrid, 0)
        load_own(training.arbitrator, scrambled(training))
        values, others = (np.array(predictions(training.arbitrator, lessons, one)) for one in (hybrid, not hybrid))
        chance = 1 / (1 + np.exp(-values[:, 0]))
        assert np.std(values[:, 0]) > 0.05 and np.abs(values[:, 0] - others[:, 0]).max() > 0.01
        loss = training.learn(lessons)
        by_hand = -np.mean(values[:, 1] * np.log(chance) + (1 - values[:, 1]) * np.log(1 - chance))
        assert loss == pytest.approx(by_hand, rel=1e-5)
        assert not training.arbitrator.training
        results.append(own(training))
    for name in results[0]:
        torch.testing.assert_close(results[0][name], results[1][name], rtol=1e-3, atol=1e-5)


def test_the_rate_rises_and_falls():
    assert [schedule(i, 20, 0.25) for i in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert schedule(12, 19, 0.25) == pytest.approx(0.5 * (1 + math.cos(math.pi * (12 - 4.75) / 14.25)))
    assert schedule(20, 20, 0.25) == pytest.approx(0) and schedule(0, 20, 0) == 1 == schedule(0, 1, 0.05)
    rates = [schedule(i, 50, 0.1) for i in range(50)]
    assert rates[4:] == sorted(rates[4:], reverse=True) and min(rates) > 0


@pytest.mark.parametrize("dropout", (0, 0.3))
def test_a_killed_training_goes_on_and_ends_with_the_same_arbitrator(tmp_path, monkeypatch, dropout):
    monkeypatch.setattr(WarmUp, "checkpoint_seconds", -1)
    lessons, facts = lessons_of_a_rule(20, 0), {"epochs": 3, "batch": 6, "dropout": dropout}  # 4 batches an epoch
    (tmp_path / "whole").mkdir(), (tmp_path / "stopped").mkdir()
    torch.manual_seed(1)
    whole = learn(tmp_path / "whole", lessons, **facts)
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "stopped", lessons, stopping(6), **facts)
    state = load_checkpoint(tmp_path / "stopped" / "checkpoint.pt", {"seed": 0})
    assert state["step"] == 5, "the sixth was not saved"
    torch.manual_seed(2)  # whatever was drawn before
    before = torch.get_rng_state()
    heard = []
    again = learn(tmp_path / "stopped", lessons, heard.append, **facts)
    assert heard == [5] + [1] * 7 and torch.equal(torch.get_rng_state(), before)
    assert same(own(again), own(whole))
    other = learn(tmp_path, lessons, seed=1, **facts)
    assert not same(own(other), own(whole))


def test_a_checkpoint_of_another_training_or_a_damaged_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(WarmUp, "checkpoint_seconds", -1)
    lessons, file = lessons_of_a_rule(6, 0), tmp_path / "checkpoint.pt"
    learn(tmp_path, lessons, epochs=1)
    for facts, what in (({"seed": 1}, "seed"), ({"seed": 0, "mask": "causal"}, "mask")):
        with pytest.raises(UserError, match=rf"begun with different {what}; delete it, or choose another --out"):
            learn(tmp_path, lessons, facts=facts, epochs=1)
    whole = file.read_bytes()
    torch.save({"own": {}, "facts": {"seed": 0}}, file)
    lacking = file.read_bytes()
    for data in (whole[:-100], whole[: len(whole) // 2], lacking, b"", b"a checkpoint"):
        file.write_bytes(data)
        with pytest.raises(UserError, match=r"is damaged .*delete it"):
            learn(tmp_path, lessons, epochs=1)


def test_a_loss_that_is_no_number_stops_it(tmp_path, monkeypatch):
    monkeypatch.setattr(WarmUp, "checkpoint_seconds", -1)
    for rate in (1e30, 1e200):
        with pytest.raises(UserError, match=r"the loss is (nan|inf) at step \d+; try a smaller learning_rate"):
            learn(tmp_path / str(rate), lessons_of_a_rule(40, 0), learning_rate=rate)


def test_weights_that_are_no_numbers_are_never_handed_on(tmp_path, monkeypatch):
    """The last step of all breaks them, behind the last loss."""
    real = WarmUp.learn

    def broken(self, batch):
        loss = real(self, batch)
        if self.step == self.steps - 1:
            with torch.no_grad():
                next(iter(self.parameters.values())).fill_(math.nan)
        return loss

    monkeypatch.setattr(WarmUp, "learn", broken)
    with pytest.raises(UserError, match="smaller learning_rate"):
        learn(tmp_path, lessons_of_a_rule(6, 0), epochs=2)


def test_too_few_lessons_are_one_line():
    silent = Lesson("a", Reading([1, 2], []), [])
    one = lessons_of_a_rule(1, 0)[0]
    for some in ([], [silent], [silent, one], [one, one]):
        with pytest.raises(UserError, match=r"have a mismatch to learn from; take more --documents"):
            module.split(some, 0)
    learned, held = module.split([silent, *lessons_of_a_rule(20, 0), *lessons_of_a_rule(20, 1)], 0)
    assert len(learned) == 36 and len(held) == 4 and not {x.document for x in learned} & {x.document for x in held}


def test_a_new_policy_without_a_warm_up_rejects(pocket):
    models = with_backbone(pocket, "draft")
    first, second, adapter = module.load_warm_up(module.Path("none"), models, 0)
    assert first is not second and same(
        {n: p.detach() for n, p in own_parameters(first).items()},
        {n: p.detach() for n, p in own_parameters(second).items()},
    )
    ((logit,),) = all_logits(first, [Reading([5, 6, 7], [Query(2, [1, 2, 3, 4], [0])])], True)
    assert logit == module.REJECT_ALL and 1 / (1 + math.exp(-logit)) < 0.05 and adapter.rank > 0


# The command

TRAIN = ("train", "--method", "cospec", "--data", "pocket_gsm8k:calibration")
FEW = ("--documents", "2")
RUN = ("run", "--method", "cospec", "--suite", "short.yaml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*TRAIN, "--stage", "foo"), "--stage foo: cospec is trained in the stages sft and rl"),
        ((*TRAIN, "--stage", "rl", *FEW), "--warm-up FILE"),
        ((*TRAIN, "--stage", "rl", "--judge", "rollout"), "--judge belongs to --stage sft"),
        ((*TRAIN, "--stage", "rl", "--warm-up", "gone.safetensors", *FEW), "there is no head gone.safetensors"),
        ((*TRAIN, "--stage", "rl", "--warm-up", "none", "--documents", "1"), "more --documents"),
        ((*TRAIN, "--warm-up", "a.safetensors"), "--warm-up belongs to --stage rl"),
        ((*TRAIN, "--grid", "epochs=1,2"), "leave out --grid"),
        ((*TRAIN, "--judge", "no/model", *FEW), "no/model"),
        ((*TRAIN, "--recipe", "epoch=2"), "did you mean 'epochs'"),
        ((*TRAIN, "--recipe", "both_right=2"), "both_right"),
        ((*TRAIN, "--stage", "rl", "--recipe", "both_right=1"), "both_right"),
        ((*TRAIN, "--stage", "rl", "--recipe", "group=1"), "group"),
        (
            ("train", "--method", "cospec", "--data", "pocket_cnndm:calibration", *FEW),
            "pocket_cnndm: its answers are graded",
        ),
        (("train", "--method", "cospec", "--data", "pocket_gsm8k:test", *FEW), "must not be learned from"),
        (("train", "--method", "judge", "--suite", "pocket", "--stage", "sft"), "is trained in one stage"),
        (("train", "--method", "judge", "--suite", "pocket", "--judge", "rollout"), "is trained in one stage"),
    ],
)
def test_what_cannot_be_is_one_clear_line(words, said):
    assert said in refused(*words)


def of_recipe(*changes):
    return [word for change in changes for word in ("--recipe", change)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Both stages on pocket: a dozen documents, one epoch; then two updates of two prompts by two."""
    folder = tmp_path_factory.mktemp("trained")
    few = ("--documents", "12")
    sft = call(*TRAIN, *few, *of_recipe("epochs=1", "rank=4"), "--out", folder / "sft.safetensors")
    assert sft.exit_code == 0, sft.output
    small = ("updates=2", "prompts=2", "group=2", "epochs=1", "evaluate=2")
    words = (*TRAIN, "--stage", "rl", "--warm-up", folder / "sft.safetensors", *few, *of_recipe(*small))
    rl = call(*words, "--out", folder / "rl.safetensors")
    assert rl.exit_code == 0, rl.output
    return folder, sft.output, rl.output


def test_both_stages_from_the_command_line(place, pocket):
    folder, sft, rl = place
    files = ["rl.safetensors", "rl.updates.parquet", "sft.safetensors", "sft.traces"]
    assert sorted(path.name for path in folder.iterdir()) == files
    assert "12 documents" in sft and "held out:" in sft and "--stage rl --warm-up" in sft
    assert "update 1:" in rl and "update 2:" in rl and "specbench run --method cospec" in rl
    models = with_backbone(pocket, "draft")
    for name, stage in (("sft", "sft"), ("rl", "rl")):
        _, head = find_arbitrator(str(folder / f"{name}.safetensors"), models)
        assert (head.trained["stage"], head.trained["rank"], head.trained["gamma"]) == (stage, 4, 25)
        assert head.trained["documents"] == 12 and head.trained["tasks"] == ["pocket_gsm8k"]
        assert head.trained["held_out"]
    traces = [row for path in (folder / "sft.traces").iterdir() for row in pq.read_table(path).to_pylist()]
    labels = [label for row in traces for label in row["labels"]]
    assert len(traces) == 12 and set(labels) <= {0.0, 0.5, 1.0} and f"{len(labels)} mismatches" not in rl


def test_the_figures_of_every_update_are_kept(place):
    """Those of the evaluations too, though the first update had none."""
    rows = pq.read_table(place[0] / "rl.updates.parquet").to_pylist()
    assert [row["update"] for row in rows] == [1, 2]
    assert {"returned", "accuracy", "tau", "kept", "loss", "entropy", "kl", "seconds"} <= rows[0].keys()
    assert rows[0].get("held_tau") is None and rows[1].get("held_tau") is not None


def test_what_was_trained_decodes(place, here):  # noqa: F811
    head = f"cospec.arbitrator={place[0] / 'rl.safetensors'}"
    (here / "short.yaml").write_text(json.dumps({"description": "short", "tasks": [{"task": "pocket_gsm8k"}]}))
    result = call(*RUN, "--set", head, "--limit", "1", "--baseline", "none", "--out", "run")
    assert result.exit_code == 0, result.output
    (rounds,) = [pq.read_table(path).to_pandas() for path in (here / "run").rglob("*rounds*.parquet")][:1]
    assert rounds.arbitrator_forwards.sum() > 0


def test_a_warm_up_of_another_pair_is_refused(place, folders):  # noqa: F811
    words = (*TRAIN, "--stage", "rl", "--warm-up", place[0] / "sft.safetensors", *FEW, "--set", "cospec.gamma=3")
    assert "sft.safetensors" in refused(*words, "--pair", folders)
