"""Training a judge: swaps whose outcome is known by construction, stopped trainings, and the regression itself."""

import json

import numpy as np
import oracle
import pytest
import statsmodels.api as sm
import torch
from chain_models import END, chain
from chains import SIZE, Words
from gates import decode
from jobs import job_of, stopping
from made_documents import document, plan_of
from scipy.stats import mannwhitneyu
from screens import output, refusal

from pocket.corpus import prompt_and_completion
from pocket.documents import generated
from specbench import methods
from specbench.config import UserError
from specbench.engine.models.heads import read_head
from specbench.engine.models.pair import Pair
from specbench.methods.lossy import judge as method
from specbench.training import train
from specbench.training.documents import training_documents
from specbench_extras.judge import mining
from specbench_extras.judge import train as judge
from specbench_extras.judge.logistic import at_threshold, auroc, balanced, choose_penalty, fit

# A target whose next token depends on the last one only, and a draft that differs in five places. Greedy answer to a
# prompt that ends with 1: 2 3 4 5 6 0, and 0 ends it. An answer is right if it holds a 6.
TARGET = {1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: END, 12: 4, 15: 16, 16: 15, 17: END, 18: END, 31: 30, 30: END}
DRAFT = {**TARGET, 1: 13, 2: 12, 4: 15, 6: 17, 30: 18}
# 13 for 2 is the prefill's, never drafted. 12 for 3 goes back to 4: harmless. 15 for 5 never ends and never meets 6.
# 17 for the end comes behind the 6: harmless.
SWAPS = [(5, 17, END, True), (3, 15, 5, False), (1, 12, 3, True)]


@pytest.fixture
def pair() -> Pair:
    return Pair("made", {"target": chain(TARGET), "draft": chain(DRAFT)}, Words(END))


def test_the_made_models_do_what_they_are_made_for(pair):
    assert oracle.greedy(pair.models["target"].cpu(), [7, 1], 6) == [2, 3, 4, 5, 6, END]
    assert oracle.greedy(pair.models["draft"].cpu(), [7, 2], 4) == [12, 4, 15, 16]


def test_swaps_of_known_outcome(pair):
    mined = mining.Miner(pair, seed=0).mine(document(0))
    listed = list(zip(mined.positions, mined.draft_tokens, mined.target_tokens, mined.labels, strict=True))
    assert listed == SWAPS and mined.scores == [1.0, 0.0, 1.0] and mined.original == 1.0
    assert mined.hidden.argmax(-1).tolist() == [17, 15, 12], "the state behind the draft token itself"
    assert mined.hidden.dtype == np.float16 and mined.hidden.max() == pytest.approx(SIZE**0.5, rel=1e-3)


def test_a_swap_knows_its_document(pair):
    """The penalty is chosen by whole documents."""
    mined = [mining.Miner(pair, seed=0).mine(document(n)) for n in (0, 1)]
    assert judge.gather(mined).documents.tolist() == [0] * 3 + [1] * 3


def test_right_means_not_worse_than_the_targets_own_answer(pair):
    """Scores between 0 and 1, as ROUGE gives: what costs a little is wrong, what gains a little is right."""

    def score(text):
        words = text.split()
        return 0.5 - 0.1 * ("12" in words) + 0.1 * ("17" in words)

    mined = mining.Miner(pair, seed=0).mine(document(0, score=score))
    assert mined.scores == pytest.approx([0.6, 0.5, 0.4]) and mined.labels == [True, True, False]


def test_a_wrong_answer_is_skipped_and_so_is_one_without_mismatches(pair):
    asked = []
    miner = mining.Miner(pair, seed=0)
    wrong = miner.mine(document(0, [31], score=lambda text: asked.append(text) or 0.0))
    assert (asked, wrong.labels, wrong.original) == (["30"], [], 0.0)
    agreed = miner.mine(document(0, [5]))
    assert (agreed.labels, agreed.original) == ([True], 1.0), "6, then 17 for the end"
    assert miner.mine(document(0, [16, 30], score=lambda text: 1.0)).labels == []


def test_limits_and_stop_strings_end_swapped_answers_too(pair):
    heard = []
    mining.Miner(pair, seed=0).mine(document(0, score=lambda text: heard.append(text) or 1.0, length=7))
    assert heard == ["2 3 4 5 6", "2 3 4 5 6 17", "2 3 4 15 16 15 16", "2 12 4 5 6"]
    heard.clear()
    stopped = mining.Miner(pair, seed=0).mine(
        document(0, score=lambda text: heard.append(text) or 1.0, length=7, until=("16", "5 6"))
    )
    assert heard == ["2 3 4 ", "2 3 4 15 ", "2 12 4 "] and stopped.positions == [3, 1]


def test_no_more_swaps_than_the_limit_and_the_same_ones_each_time(pair, monkeypatch):
    monkeypatch.setattr(mining, "MOST_SWAPS", 2)
    result = {tuple(mining.Miner(pair, seed).mine(document(0)).positions) for seed in range(20)}
    assert result == {(5, 3), (5, 1), (3, 1)}
    assert mining.Miner(pair, 3).mine(document(0)).positions == mining.Miner(pair, 3).mine(document(0)).positions


def test_every_swap_equals_a_decoder_without_cache():
    """Random models: each swapped answer is what greedy decoding from scratch makes of it."""
    target, draft = oracle.tiny_pair("llama")
    pair = Pair("tiny", {"target": target, "draft": draft}, Words(END))
    (prompt,) = oracle.prompts(1, length=9)
    heard: list[str] = []
    mined = mining.Miner(pair, seed=0).mine(document(0, prompt, lambda text: heard.append(text) or 1.0, length=40))
    answer = [*oracle.greedy(target, prompt, 40)]
    assert END not in answer and heard[0] == Words().decode(answer) and len(mined.positions) >= 4
    for i, token, text, state in zip(mined.positions, mined.draft_tokens, heard[1:], mined.hidden, strict=True):
        assert token == oracle.greedy(draft, prompt + answer[:i], 1)[0] != answer[i]
        start = [*answer[:i], token]
        whole = start + oracle.greedy(target, prompt + start, 40 - len(start))
        whole = whole[: whole.index(END)] if END in whole else whole
        assert text == Words().decode(whole)
        with torch.no_grad():
            read = target.base_model(torch.tensor([prompt + start]), use_cache=False).last_hidden_state[0, -1]
        assert np.allclose(state, read.numpy(), rtol=2e-3, atol=2e-3)
    others = [oracle.greedy(draft, prompt + answer[:i], 1)[0] for i in range(1, 40) if i not in mined.positions]
    assert others == [answer[i] for i in range(1, 40) if i not in mined.positions]


@pytest.fixture
def job(pair, tmp_path, monkeypatch):
    """A training on ten made documents, of which two are answered wrong."""
    documents = [document(i) for i in range(8)] + [document(i, [20 + i, 31]) for i in (8, 9)]
    monkeypatch.setattr(judge, "training_documents", lambda *_: documents)
    return lambda name="judge.safetensors", seed=0: job_of("judge", pair, tmp_path / name, seed)


def test_the_trained_head_keeps_the_harmless_tokens_and_refuses_the_other(job, pair, capsys):
    judge.train(job())
    settings = method.Settings(gamma=4, threshold=0.5, head=str(job().out))
    built = method.build(settings, pair, None)
    trained = read_head(job().out, "judge", pair, None).trained
    assert (trained["documents"], trained["swaps"], trained["right"]) == (10, 21, 14)
    assert (trained["held_out_swaps"], trained["held_out_auroc"], trained["held_out_accuracy"]) == (3, 1.0, 1.0)
    text, rounds = decode(built, [33, 1], 7)
    # 2, then: 12 kept, 4 matches, 15 refused for 5; then 6 matches, 17 kept for the end, which matches behind it.
    assert text == [2, 12, 4, 5, 6, 17, END]
    assert [r.verdict.rescued for r in rounds[1:]] == [(0,), (1,)]
    printed = capsys.readouterr().out
    assert "8 of 10 answers are right; 21 swaps to learn from, 67% of them harmless" in printed
    assert "held out: 3 swaps, 2 of them harmless; AUROC 1.000, accuracy at 0.5 100%" in printed


def test_a_stopped_training_goes_on_and_gives_the_same_head(job, monkeypatch):
    judge.train(job("whole.safetensors"))
    calls = []
    monkeypatch.setattr(mining.Miner, "mine", stopping(5, mining.Miner.mine, calls))
    with pytest.raises(KeyboardInterrupt):
        judge.train(job("stopped.safetensors"))
    assert not job("stopped.safetensors").out.exists()
    judge.train(job("stopped.safetensors"))
    assert [one.number for _, one in calls] == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9]
    assert job("stopped.safetensors").out.read_bytes() == job("whole.safetensors").out.read_bytes()


def test_what_was_mined_otherwise_or_is_damaged_is_refused(job):
    judge.train(job())
    with pytest.raises(UserError, match=r"collected with different seed; delete that folder"):
        judge.train(job(seed=1))
    file = next(job().folder("mined").iterdir())
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"is damaged .* delete it"):
        judge.train(job())


@pytest.mark.parametrize(("score", "what"), [(lambda text: 1.0, "right"), (lambda text: 0.0, "too few")])
def test_nothing_to_learn_is_one_line(job, monkeypatch, score, what):
    documents = [document(i, score=score) for i in range(4)]
    monkeypatch.setattr(judge, "training_documents", lambda *_: documents)
    with pytest.raises(UserError, match=rf"{what}.*more --documents"):
        judge.train(job())


# The documents


@pytest.mark.long
def test_pocket_documents_are_of_the_calibration_split_and_are_scored_by_their_task(pocket):
    documents = training_documents(plan_of("pocket", 3), pocket, 7)
    assert [d.name for d in documents[:4]] == [*(f"pocket_gsm8k-{i:05d}" for i in range(3)), "pocket_math500-00000"]
    for family in ("gsm8k", "math500", "humaneval", "cnndm"):
        rows = generated(family, "calibration")[:3]
        of_family = [d for d in documents if d.task == f"pocket_{family}"]
        for one, row in zip(of_family, rows, strict=True):
            prompt, completion = prompt_and_completion(family, row)
            assert pocket.tokenizer.decode(one.prompt, skip_special_tokens=True) == prompt
            assert one.score(completion) == pytest.approx(1.0) and one.score("no idea") == 0.0
        assert min(of_family[0].score(prompt_and_completion(family, row)[1]) for row in rows[1:]) < 1.0


def test_real_documents_are_of_the_training_split(pocket, tmp_path, capsys):
    row = {"question": "What is 2 + 2?", "answer": "It is 4.\n#### 4"}
    (tmp_path / "gsm8k_train.jsonl").write_text(json.dumps(row) + "\n")
    (one,) = training_documents(plan_of("math", 5, str(tmp_path)), pocket, 7)
    assert "What is 2 + 2?" in pocket.tokenizer.decode(one.prompt)
    assert (one.score("So the answer is 4."), one.score("It is 5.")) == (1.0, 0.0)
    assert "minerva_math500: left out" in capsys.readouterr().out
    suite = tmp_path / "mine.yaml"
    suite.write_text(json.dumps({"description": "one", "tasks": [{"task": "humaneval"}]}))
    with pytest.raises(UserError, match=r"no task of .* has documents to learn from"):
        training_documents(plan_of(str(suite), 5, str(tmp_path)), pocket, 7)


def test_the_command_refuses_what_cannot_be_trained(tmp_path):
    words = ("train", "--method", "judge", "--suite", "pocket")
    for name in ("sps", "csd", "rest"):
        assert f"{name} has nothing to train" in refusal("train", "--method", name, "--suite", "pocket")
    assert "only judge is trained" in refusal(*words, "--set", "csd.gamma=4")
    assert "did you mean 'gamma'" in refusal(*words, "--set", "judge.gama=4")
    (tmp_path / "there.safetensors").write_text("")
    there = str(tmp_path / "there.safetensors")
    assert "that has finished: use it, or choose another --out" in " ".join(refusal(*words, "--out", there).split())


def test_a_training_that_was_killed_after_its_file_was_written_has_finished(tmp_path):
    """Its checkpoint would have been deleted next."""
    (tmp_path / "head.safetensors").write_text("weights")
    (tmp_path / "head.checkpoint.pt").write_text("state")
    words = ("train", "--method", "judge", "--suite", "pocket", "--out", tmp_path / "head.safetensors")
    assert "its training has finished" in output(*words)
    assert [path.name for path in tmp_path.iterdir()] == ["head.safetensors"]


def test_the_command_hands_on_what_it_was_given(monkeypatch, tmp_path, pocket):
    jobs = []
    monkeypatch.setattr(train, "load_pair", lambda *_, **__: pocket)
    monkeypatch.setattr(judge, "train", jobs.append)
    out = tmp_path / "head.safetensors"
    options = ("--documents", "7", "--seed", "3", "--set", "judge.gamma=9", "--out", str(out))
    output("train", "--method", "judge", "--suite", "math", *options)
    (job,) = jobs
    assert (job.plan.limit, job.plan.seed, job.settings.gamma, job.out) == (7, 3, 9, out)
    assert [line.task for line in job.plan.tasks] == ["pocket_gsm8k", "pocket_math500"]


def test_every_trainer_is_found_by_its_file_and_named_in_the_help():
    trainable = {name for name in methods.names() if train.trainer(name)}
    layers, blocks = {"chimera", "del", "eagle", "eagle3", "medusa", "hydra"}, {"deer", "dflare", "dflash", "specblock"}
    assert trainable == {"judge", "specdecpp", *layers, *blocks, "vocabtrim", "cospec", "kangaroo", "speckv", "mtp"}
    words = " ".join(output("train", "--help").split())
    assert all(name in words for name in (*trainable, "draft"))
    assert train.trainer("draft")
    assert train.trainer("../train") is None and train.trainer("nothing") is None


# The regression


@pytest.fixture
def made():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)) * [1, 10, 0.1, 3] + [0, 5, -1, 100]
    truth = (x - [0, 5, -1, 100]) @ [1.0, 0.1, -5, 0.2] + 1
    return x, rng.random(300) < 1 / (1 + np.exp(-truth))


def test_without_a_penalty_it_is_statsmodels_weighted_maximum_likelihood(made):
    x, labels = made
    weights = balanced(labels)
    assert weights[labels].sum() == pytest.approx(150) and weights[~labels].sum() == pytest.approx(150)
    theirs = sm.GLM(labels.astype(float), sm.add_constant(x), sm.families.Binomial(), freq_weights=weights).fit(
        tol=1e-12
    )
    ours = fit(x, labels, weights, 0.0)
    assert [ours.bias, *ours.weight] == pytest.approx(theirs.params, rel=1e-4)


def test_the_penalty_is_on_standardised_weights(made):
    """Where the gradient of the stated loss is zero, worked out again: the loss is convex, so it is the minimum."""
    x, labels = made
    weights, penalty = balanced(labels), 20.0
    ours = fit(x, labels, weights, penalty)
    pull = weights * (labels - 1 / (1 + np.exp(-ours.scores(x))))
    z = (x - x.mean(0)) / x.std(0)
    assert z.T @ pull == pytest.approx(penalty * ours.weight * x.std(0), rel=1e-4, abs=1e-4)
    assert pull.sum() == pytest.approx(0, abs=1e-4)
    free = fit(x, labels, weights, 0.0)
    assert np.abs(ours.weight * x.std(0)).sum() < 0.8 * np.abs(free.weight * x.std(0)).sum()


def test_a_feature_that_never_changes_gets_no_weight(made):
    x, labels = made
    wider = np.column_stack([x, np.full(300, 7.0)])
    ours, other = fit(x, labels, balanced(labels), 1.0), fit(wider, labels, balanced(labels), 1.0)
    assert other.weight[-1] == 0 and other.weight[:-1] == pytest.approx(ours.weight, rel=1e-4)


def test_auroc_counts_pairs():
    rng = np.random.default_rng(1)
    labels, scores = rng.random(60) < 0.4, rng.integers(0, 9, 60).astype(float)
    pairs = [(a > b) + (a == b) / 2 for a in scores[labels] for b in scores[~labels]]
    assert auroc(labels, scores) == pytest.approx(np.mean(pairs))
    u = mannwhitneyu(scores[labels], scores[~labels]).statistic
    assert auroc(labels, scores) == pytest.approx(u / (labels.sum() * (~labels).sum()))
    assert np.isnan(auroc(np.ones(3, bool), scores[:3]))


def test_a_threshold_by_hand():
    """σ: .27, .5, .73, .88; accepted above .5: the last two, of which one is right, of two right ones."""
    labels, scores = np.array([False, True, False, True]), np.array([-1.0, 0, 1, 2])
    result = at_threshold(labels, scores, 0.5)
    assert (result.accepted, result.precision, result.recall, result.accuracy) == (0.5, 0.5, 0.5, 0.5)
    assert np.isnan(at_threshold(labels, scores, 0.9).precision)


def test_the_penalty_is_chosen_by_whole_documents():
    """Five parts of the documents, each judged by what the others teach; the loss is written again here."""
    rng = np.random.default_rng(2)
    groups = np.repeat(np.arange(30), 6)
    signal = rng.normal(size=180)
    labels = signal + rng.normal(size=180) > 0
    x = np.column_stack([signal, rng.normal(size=(180, 60))])
    parts = [np.isin(groups, np.unique(groups)[k::5]) for k in range(5)]
    penalties = (1.0, 10.0, 1000.0, 1e6)

    def loss(penalty, out):
        scores = fit(x[~out], labels[~out], balanced(labels[~out]), penalty).scores(x[out])
        right = 1 / (1 + np.exp(-scores))
        return -(balanced(labels)[out] * np.log(np.where(labels[out], right, 1 - right))).sum()

    totals = {penalty: sum(loss(penalty, out) for out in parts) for penalty in penalties}
    assert choose_penalty(x, labels, groups, penalties) == min(totals, key=totals.get) == 1000.0
    two = np.arange(180) < 6
    assert choose_penalty(x, two, np.minimum(groups, 1), (1.0, 10.0)) == 10.0
