"""Drafts of another tokenizer: what the draft reads, what it may propose, and texts that stay the target's own."""

import copy
import functools
import itertools
import json

import numpy as np
import oracle
import pytest
import torch
from cases import architectures, mostly_long
from gates import DEVICE, GREEDY, decode, policies, random_head
from law import fit
from refusals import one_line_error
from tokenizers import Tokenizer
from tokenizers import models as kinds
from transformers import PreTrainedTokenizerFast
from two_tokenizers import KINDS, LETTERS, SIZES, TEXTS, byte_level, pieces, translation
from typer.testing import CliRunner

from specbench.cli import app
from specbench.config import ModelSpec, PairSpec
from specbench.engine.drafters import ModelDrafter
from specbench.engine.models.pair import Pair, check_rollback, load_pair
from specbench.engine.session import LAST, Session, Unwatched
from specbench.engine.translate import Reading, Translation, spellings
from specbench.engine.translated import Translated
from specbench.engine.types import Sampling
from specbench.methods import module
from specbench.methods.chains.sps import SpS
from specbench.methods.lengths.oracle import Oracle
from specbench.methods.lengths.specdecpp import Predicted
from specbench.methods.lossy.fly import LookupDrafter
from specbench.studies.doctor_pair import cache, vocabulary
from specbench_extras.bench.prompts import bundled_prompts

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
DRAWS = 500


# Which tokens are shared


def test_spellings_of_both_kinds_by_hand():
    theirs, ours = byte_level(), pieces()
    for token, spelling in (("Ġ", b" "), ("Ċ", b"\n"), ("a", b"a"), ("Ġthe", b" the"), ("Ã", b"\xc3")):
        assert spellings(theirs, SIZES["bytes"])[theirs.convert_tokens_to_ids(token)] == spelling
    for token, spelling in (("▁", b" "), ("<0x0A>", b"\n"), ("a", b"a"), ("▁the", b" the"), ("<0xC3>", b"\xc3")):
        assert spellings(ours, SIZES["pieces"])[ours.convert_tokens_to_ids(token)] == spelling
    assert spellings(ours, 300).keys() == set(range(300))
    for i, spelling in spellings(theirs, SIZES["bytes"]).items():
        if isinstance(spelling, bytes):
            assert spelling.decode(errors="replace") == theirs.decode([i])


def test_of_two_spaces_the_tokenizer_puts_the_first():
    """A tokenizer that puts a space before each text: the spelling of a piece within one has both of its spaces."""
    one, draft = translation("bytes", "pieces"), KINDS["pieces"]()
    ids = [*one.word(b"a", first=True), *one.word(b"  b")]
    assert draft.decode(ids).strip() == "a  b"


def test_shared_tokens_by_hand():
    theirs, ours, result = byte_level(), pieces(), translation().shared
    pairs = {"Ġthe": "▁the", "Ġ": "▁", "Ċ": "\n", "a": "a", "Ã": "<0xC3>", "<|endoftext|>": "</s>"}
    for one, other in pairs.items():
        assert result[theirs.convert_tokens_to_ids(one)] == ours.convert_tokens_to_ids(other)
    assert len(set(result.values())) == len(result), "one to one"
    assert theirs.convert_tokens_to_ids("<|tool|>") not in result
    back = translation("pieces", "bytes").shared
    assert {draft: target for target, draft in result.items()} == back
    assert translation().start == [1] and translation("pieces", "bytes").start == []


def test_logits_and_ids_of_the_intersection():
    mapping = translation()
    logits = torch.randn(3, SIZES["pieces"], generator=torch.Generator().manual_seed(0))
    missing = mapping.outside(logits)
    assert missing.shape == (3, SIZES["bytes"])
    for token in range(SIZES["bytes"]):
        if token in mapping.shared:
            assert torch.equal(missing[:, token], logits[:, mapping.shared[token]])
            assert mapping.inside(torch.tensor([token])).tolist() == [mapping.shared[token]]
        else:
            assert (missing[:, token] == -torch.inf).all()
            assert mapping.inside(torch.tensor([token])).tolist() == [mapping.stand_in] == [0]


# What the draft reads


def read(facts: Translation, tokens, step: int) -> Reading:
    """A text read bit by bit."""
    reading = Reading(facts)
    for end in [*range(1, len(tokens), step), len(tokens)]:
        reading.read(tokens[:end], len(reading.tokens))
    return reading


@pytest.mark.parametrize("direction", (("bytes", "pieces"), ("pieces", "bytes")), ids=str)
def test_what_is_read_is_the_drafts_own_encoding(direction):
    """Of every finished word; the last one is spelled token by token."""
    mapping = translation(*direction)
    target = KINDS[direction[0]]()
    for text in TEXTS[::6]:
        tokens = target(text)["input_ids"]
        expected = mapping.draft(text)["input_ids"]
        for step in (1, 5, len(tokens)):
            reading = read(mapping, tokens, step)
            assert reading.tokens == tokens and len(reading.ends) == len(tokens)
            assert reading.ends == sorted(reading.ends) and reading.ends[-1] == len(reading.ids)
            done = reading.ends[reading.settled - 1]
            assert reading.ids[:done] == expected[:done] and len(reading.ids) - done < 60
        assert mapping.draft.decode(reading.ids, skip_special_tokens=True).strip() == text.strip()


def test_a_word_that_goes_on_is_read_again_and_another_text_too():
    mapping, words = (
        translation(),
        byte_level()("the cat the dog sat on the mat and", add_special_tokens=False)["input_ids"],
    )
    other = byte_level()("the cat the bird", add_special_tokens=False)["input_ids"]
    reading, shared = Reading(mapping), 0
    reading.read(words, 0)
    while words[shared] == other[shared]:
        shared += 1
    reading.read(other, shared)
    fresh = Reading(mapping)
    fresh.read(other, 0)
    assert (reading.ids, reading.ends, reading.tokens) == (fresh.ids, fresh.ends, fresh.tokens)
    assert reading.settled == fresh.settled


def test_a_finished_word_goes_on_where_the_next_one_is_taken_back():
    """A draft that began another word is refused, and letters follow: the word before it is read again, as a whole."""
    mapping, target = translation(), byte_level()
    tokens = target(TEXTS[0], add_special_tokens=False)["input_ids"]
    goes_on, ends = target("ing and", add_special_tokens=False)["input_ids"][:1], target(" and")["input_ids"]
    places = 0
    for at in range(1, len(tokens)):
        reading = Reading(mapping)
        reading.read(tokens[: at + 1], 0)
        places += reading.settled == at
        reading.read([*tokens[:at], *goes_on], at)
        for context in ([*tokens[:at], *goes_on], [*tokens[:at], *goes_on, *ends]):
            reading.read(context, min(at + 1, len(context)))
            fresh = Reading(mapping)
            fresh.read(context, 0)
            result = reading.ids, reading.ends, reading.tokens, reading.settled
            assert result == (fresh.ids, fresh.ends, fresh.tokens, fresh.settled)
    assert places > 5


@pytest.mark.parametrize("direction", (("bytes", "pieces"), ("pieces", "bytes")), ids=str)
def test_parts_of_characters(direction):
    """After each of its bytes the draft has read exactly these bytes; a finished word is whole again."""
    mapping = translation(*direction)
    target = KINDS[direction[0]]()
    text = "a " + LETTERS * 2
    tokens = target(text)["input_ids"]
    own = spellings(mapping.draft, SIZES[direction[1]])
    for end in range(2, len(tokens) + 1):
        reading = read(mapping, tokens[:end], 1)
        written = b"".join(one for i in reading.ids if isinstance(one := own[i], bytes))
        expected = b"".join(one for i in tokens[:end] if isinstance(one := mapping.spellings[i], bytes))
        assert written.removeprefix(b" ") == expected.removeprefix(b" ")
    done = reading.ends[reading.settled - 1]
    assert reading.ids[:done] == mapping.draft(text)["input_ids"][:done] and done > 15


def test_tokens_that_are_parts_of_characters():
    """As two of the three bytes of a sign; in a vocabulary without merges of them they are written byte by byte."""
    mapping, result = translation(), 0
    own = spellings(mapping.draft, SIZES["pieces"])
    for token, spelling in mapping.spellings.items():
        if isinstance(spelling, bytes) and len(spelling) > 1 and "\ufffd" in spelling.decode(errors="replace"):
            assert [own[i] for i in mapping.spell(token)] == [spelling[at : at + 1] for at in range(len(spelling))]
            result += 1
    assert result


def test_special_tokens():
    """The end token is the draft's own, one without a counterpart is written out, and what follows begins again."""
    words, mapping = byte_level(), translation()
    end, tool = (words.convert_tokens_to_ids(name) for name in ("<|endoftext|>", "<|tool|>"))
    hello = words("hello there", add_special_tokens=False)["input_ids"]
    reading = read(mapping, [*hello, end, *hello, tool, *hello], 1)
    text = pieces().decode(reading.ids)
    assert reading.ids.count(2) == 1 and text.count("hello there") == 3 and "<|tool|>" in text
    assert read(translation("pieces", "bytes"), [1], 1).ids == [translation("pieces", "bytes").stand_in]
    assert read(translation("pieces", "bytes"), [1, 2], 1).ids == [words.eos_token_id]


# Sequences


@functools.cache
def model(architecture: str, seed: int, size: int, **sizes):
    return oracle.tiny(architecture, seed=seed, vocab=size, **sizes).to(DEVICE)


def session(**sizes) -> Translated:
    return Translated(model("llama", 5, SIZES["pieces"], **sizes), "draft", None, translation())


def plain(ids):
    """Logits over the target's vocabulary, behind each of the draft's own ids."""
    return translation().outside(Session(model("llama", 5, SIZES["pieces"]), "draft").forward(ids).logits)


def close(result, expected):
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-4)


def test_a_sequence_rolls_back_and_catches_up():
    mapping, target = translation(), byte_level()
    text = target(TEXTS[0], add_special_tokens=False)["input_ids"][:40]
    one = session()
    assert one.restart(text[:20]).logits.shape == (1, SIZES["bytes"])
    drafted = [token for token in text[20:] if token in mapping.shared][:4]
    joined = torch.cat([one.forward(torch.tensor([token], device=DEVICE)).logits for token in drafted])
    inner = [*read(mapping, text[:20], 20).ids, *(mapping.shared[token] for token in drafted)]
    close(joined, plain(inner)[-4:])
    assert len(one) == 24
    for context in ([*text[:20], *drafted[:2], 9], [*text[:20], *drafted[:2], 9, *text[30:33]], text[:7], text):
        joined = one.catch_up(context).logits
        close(joined[-1:], plain(read(mapping, context, 1).ids)[-1:])
        assert len(one) == len(context)
    one.truncate(11)
    close(one.catch_up(text[:14]).logits[-1], plain(read(mapping, text[:14], 1).ids)[-1])
    one.truncate(0)
    spelled = [mapping.spell(token) for token in text]
    ends = list(itertools.accumulate(map(len, spelled)))
    assert max(map(len, spelled)) > 1
    whole = plain([i for ids in spelled for i in ids])[[end - 1 for end in ends]]
    close(one.forward(text).logits, whole)
    one.truncate(25)
    close(one.forward(text[25:], keep=3).logits, whole[-3:])
    assert len(one) == 40
    with pytest.raises(ValueError, match="cannot truncate 40"):
        one.truncate(41)
    check_rollback(session())


def test_hidden_states_are_those_behind_each_token():
    mapping = translation()
    text = byte_level()(TEXTS[1], add_special_tokens=False)["input_ids"][:12]
    one = session()
    states = one.forward(text, hidden=LAST).hidden
    ends = list(itertools.accumulate(len(mapping.spell(token)) for token in text))
    ids = [i for token in text for i in mapping.spell(token)]
    close(states, Session(one.model, "draft").forward(ids, hidden=LAST).hidden[[end - 1 for end in ends]])
    one.restart(text)
    assert one.catch_up([*text, 40], LAST).hidden.shape[0] == 1


def test_trees():
    mapping = translation()
    tokens = list(mapping.shared)[60:66]
    text = byte_level()(TEXTS[2], add_special_tokens=False)["input_ids"][:15]
    one, ids = session(), read(translation(), text, 15).ids
    one.restart(text)
    output = one.forward(torch.tensor(tokens, device=DEVICE), parents=[-1, -1, 0, 1, 2, 3]).logits
    close(output[4], plain([*ids, *(mapping.shared[tokens[i]] for i in (0, 2, 4))])[-1])
    one.keep(15, (1, 3))
    assert len(one) == 17
    for _ in range(2):
        close(one.forward(tokens[:1]).logits[-1], plain([*ids, *(mapping.shared[tokens[i]] for i in (1, 3, 0))])[-1])
        one.truncate(17)
    one.truncate(16)
    close(one.forward(tokens[:1]).logits[-1], plain([*ids, *(mapping.shared[tokens[i]] for i in (1, 0))])[-1])


def test_a_short_context_loses_its_beginning():
    """A draft with learned positions, and fewer of them than the text has tokens."""
    target, few = model("llama", 1, SIZES["bytes"]), model("opt", 2, SIZES["pieces"], max_position_embeddings=48)
    method = sps(target, few, translation(), 3)
    prompt = byte_level()(TEXTS[0], add_special_tokens=False)["input_ids"][:30]
    tokens, rounds = decode(method, prompt, 60)
    assert tokens == oracle.greedy(copy.deepcopy(target).cpu(), prompt, 60)
    assert all(round_.drafted == 3 for round_ in rounds[1:-1])
    assert len(method.drafter.session.inner) <= 48


# Whole texts


def sps(target, draft, facts: Translation, gamma: int, lengths=None) -> SpS:
    drafter = ModelDrafter(Translated(draft, "draft", None, facts), lengths)
    return SpS(Session(target, "target"), drafter, gamma)


@pytest.mark.parametrize("direction", (("bytes", "pieces"), ("pieces", "bytes")), ids=str)
@architectures
def test_greedy_texts_are_the_targets(architecture, direction):
    """Random ones, so that unfinished characters and tokens that the draft lacks come all the time."""
    target, draft = (model(architecture, seed, SIZES[kind]) for seed, kind in zip((1, 2), direction, strict=True))
    prompt = [token for (token,) in oracle.prompts(20, 1, SIZES[direction[0]], 3)]
    expected = oracle.greedy(copy.deepcopy(target).cpu(), prompt, 30)
    assert len(set(expected)) >= 12
    tokens, rounds = decode(sps(target, draft, translation(*direction), 3), prompt, 30)
    assert tokens == expected
    drafted = {token for round_ in rounds if round_.verdict for token in round_.verdict.drafted}
    assert drafted <= translation(*direction).shared.keys() and len(drafted) > 12


def word_tokenizer(letters: str) -> PreTrainedTokenizerFast:
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(kinds.BPE(vocabulary, [])), eos_token=letters[0])


@functools.cache
def small():
    """Eight tokens of the target, seven of the draft, five of them shared (the end tokens too)."""
    translation = Translation(word_tokenizer("abcdefgh"), word_tokenizer("zcxbdyh"), (8, 7))
    assert {i: translation.shared[i] for i in sorted(translation.shared)} == {0: 0, 1: 3, 2: 1, 3: 4, 7: 6}
    return translation


def drawn(sampling: Sampling) -> float:
    """p-value of two tokens after a prompt."""
    target = model("llama", 1, 8)
    return fit(sps(target, model("llama", 2, 7), small(), 1), target, [1, 5, 2], 2, sampling, DRAWS).p


@mostly_long("sampling", (Sampling(1.0), Sampling(0.7, top_k=4, top_p=0.9)), lambda sampling: sampling.top_k, ids=str)
def test_samples_follow_the_target(sampling):
    assert drawn(sampling) > ALPHA


@pytest.mark.long
def test_a_distribution_that_is_not_renormalised_is_found(monkeypatch):
    """DraftToken from the shared tokens, but weighed by the draft's probability of them among all of its own."""
    propose = ModelDrafter.propose

    def wrong(self, context, gamma, sampling, rng):
        draft = propose(self, context, gamma, sampling, rng)
        return draft.__class__(draft.tokens, 0.4 * draft.probs)

    monkeypatch.setattr(ModelDrafter, "propose", wrong)
    assert drawn(Sampling(1.0)) < ALPHA


# The bundled pair with a draft of another tokenizer


@functools.cache
def permuted_ids() -> list[int]:
    return torch.randperm(2048, generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture(scope="module")
def permuted(pocket):
    """The pocket pair whose draft calls every token by another number."""
    order = permuted_ids()
    state = json.loads(pocket.tokenizer.backend_tokenizer.to_str())
    state["model"]["vocab"] = {token: order[i] for token, i in state["model"]["vocab"].items()}
    for one in state["added_tokens"]:
        one["id"] = order[one["id"]]
    for one in state["post_processor"]["special_tokens"].values():
        one["ids"] = [order[i] for i in one["ids"]]
    names = {kind: getattr(pocket.tokenizer, kind) for kind in ("bos_token", "eos_token", "pad_token")}
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)), **names)
    draft = copy.deepcopy(pocket.models["draft"])
    rows = draft.get_input_embeddings().weight.data
    rows[torch.tensor(order)] = rows.clone()
    assert draft.get_output_embeddings().weight.data_ptr() == rows.data_ptr(), "tied"
    translation = Translation(pocket.tokenizer, words, (2048, 2048))
    return Pair("permuted", {**pocket.models, "draft": draft}, pocket.tokenizer, translations={"draft": translation})


def prompts_of(pair, count: int):
    return [
        pair.tokenizer(text)["input_ids"] for text in (*bundled_prompts("gsm8k", count), *bundled_prompts("cnndm", 1))
    ]


@mostly_long("sampling", (GREEDY, Sampling(1.0)), (GREEDY,), ids=("greedy", "sampled"))
def test_other_numbers_change_nothing(pocket, permuted, sampling):
    """Tokens, drafts and acceptance, round by round, are those of the plain pair."""
    assert len(permuted.translations["draft"].shared) == 2048
    for prompt in prompts_of(pocket, 2):
        decoded = []
        for pair in (pocket, permuted):
            method = SpS(pair.session("target"), ModelDrafter(pair.session("draft")), 4)
            decoded.append(decode(method, prompt, 40, sampling, device="cpu"))
        assert decoded[0][0] == decoded[1][0]
        for one, other in zip(*(rounds for _, rounds in decoded), strict=True):
            assert one.tokens == other.tokens and one.accepted == other.accepted
            assert one.verdict is None or one.verdict.drafted == other.verdict.drafted
        assert sum(one.accepted for one in decoded[1][1]) > 8


@pytest.mark.long
@pytest.mark.skipif(DEVICE != "cpu", reason="the bundled pair is on the CPU")
def test_every_way_to_draft_works_with_other_numbers(pocket, permuted):
    """Lookups, a head's states, an oracle: they ask a session for more than its last row."""
    prompt = prompts_of(pocket, 1)[0]
    expected = decode(module("vanilla").build(None, pocket, Unwatched()), prompt, 30)[0]
    for name in ("confidence", "entropy", "oracle", "specdecpp"):
        log = []
        for pair in (pocket, permuted):
            target, draft = pair.session("target"), pair.session("draft")
            if name == "oracle":
                lengths = Oracle(pair.session("target"), pair.session("draft"), pair.eos_ids, 40)
            elif name == "specdecpp":
                lengths = Predicted(random_head(pocket.models["draft"]), 0.6, shortest=1, hashes={})
            else:
                lengths = policies("llama")[name]
            log.append(decode(SpS(target, ModelDrafter(draft, lengths), 5), prompt, 30))
            assert log[-1][0] == expected, name
        assert [one.drafted for one in log[0][1]] == [one.drafted for one in log[1][1]], name
    looked = [
        decode(SpS(pair.session("target"), LookupDrafter(pair.session("draft"), 3, 5), 6), prompt, 30)
        for pair in (pocket, permuted)
    ]
    assert looked[0][0] == looked[1][0] == expected
    assert [one.accepted for one in looked[0][1]] == [one.accepted for one in looked[1][1]]


@pytest.mark.long
def test_a_draft_with_fewer_tokens_still_helps(pocket):
    """The pocket draft behind a tokenizer without the last third of its merges: other tokens, most texts' words."""
    state = json.loads(pocket.tokenizer.backend_tokenizer.to_str())
    kept = 1500
    vocabulary = {token: i for token, i in state["model"]["vocab"].items() if i < kept}
    state["model"]["vocab"] = vocabulary
    pairs = [one.split(" ") if isinstance(one, str) else one for one in state["model"]["merges"]]
    state["model"]["merges"] = [pair for pair in pairs if "".join(pair) in vocabulary]
    words = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)), bos_token="<|begin|>", eos_token="<|end|>"
    )
    translation = Translation(pocket.tokenizer, words, (2048, kept))
    assert len(translation.shared) == kept
    pair = Pair("fewer", pocket.models, pocket.tokenizer, translations={"draft": translation})
    accepted = drafted = 0
    for prompt in prompts_of(pocket, 2):
        vanilla = decode(module("vanilla").build(None, pocket, Unwatched()), prompt, 40)[0]
        tokens, rounds = decode(SpS(pair.session("target"), ModelDrafter(pair.session("draft")), 3), prompt, 40)
        assert tokens == vanilla
        accepted, drafted = (
            accepted + sum(round_.accepted for round_ in rounds),
            drafted + sum(round_.drafted for round_ in rounds),
        )
    assert accepted / drafted > 0.3


# Pairs


def save(folder, made, words) -> ModelSpec:
    made.save_pretrained(folder)
    words.save_pretrained(folder)
    return ModelSpec(model=str(folder), dtype="float64")


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    """Room for a bundled prompt in tokens that are hardly more than letters."""
    place = tmp_path_factory.mktemp("families")
    sizes = {"max_position_embeddings": 1024}
    target = save(place / "target", oracle.tiny("llama", 1, SIZES["bytes"], **sizes), byte_level())
    draft = save(place / "draft", oracle.tiny("opt", 2, SIZES["pieces"], **sizes), pieces())
    return target, draft


def test_a_pair_of_two_families_loads(specs):
    pair = load_pair(PairSpec(name="two", description="", target=specs[0], draft=specs[1]), "cpu", "float64")
    assert pair.vocabulary == SIZES["bytes"] and pair.extra_members == ()
    assert type(pair.session("draft")) is Translated and type(pair.session("target")) is Session
    facts = pair.describe()
    assert facts["draft"]["shared_tokens"] == len(translation().shared) and "tokenizer_hash" not in facts["target"]
    assert facts["draft"]["tokenizer_hash"] != pair.tokenizer_hash
    finding = vocabulary(pair)
    assert finding.level == "ok" and f"{len(translation().shared)} of the target's 420 tokens" in finding.message
    assert cache(pair).level == "ok"
    with one_line_error("need one vocabulary", "another tokenizer"):
        _ = pair.collaboration
    assert pair.own_ids("target", [5, 6]) == [5, 6]
    ids = [pair.tokenizer.convert_tokens_to_ids(token) for token in ("Ġthe", "<|tool|>", "a")]
    assert pair.own_ids("draft", ids) == [pieces().convert_tokens_to_ids(token) for token in ("▁the", "a")]


def test_too_few_shared_tokens_and_members_of_another_family(tmp_path, specs):
    raw = Tokenizer(kinds.WordLevel({f"word{i}": i for i in range(SIZES["bytes"])}, unk_token="word0"))
    other = save(tmp_path, oracle.tiny("llama", 3, SIZES["bytes"]), PreTrainedTokenizerFast(tokenizer_object=raw))
    members = [spec.model_dump() for spec in specs]
    for spec, words in (
        (PairSpec(name="far", description="", target=specs[0], draft=other), "share 0 of"),
        (PairSpec(name="far", description="", target=specs[0], members=members), "need one vocabulary"),
    ):
        with one_line_error(words):
            load_pair(spec, "cpu")


@mostly_long("temperature", ("0", "1"), ("1",))
def test_run_as_a_user_does(specs, tmp_path, temperature):
    pair = f"target={specs[0].model},draft={specs[1].model}"
    options = ["--suite", str(suite(tmp_path)), "--limit", "1", "--temperature", temperature, "--device", "cpu"]
    place = tmp_path / "run"
    done = CliRunner().invoke(app, ["run", "--method", "sps", "--pair", pair, *options, "--out", str(place)])
    assert done.exit_code == 0, done.output
    report = json.loads((place / "manifest.json").read_text())
    assert report["models"]["draft"]["shared_tokens"] > 256
    if temperature == "0":
        import pyarrow.parquet as pq

        rows = pq.read_table(place / "samples.parquet").to_pandas()
        texts = rows[~rows.warmup].groupby("method").tokens.first()
        assert np.array_equal(texts["sps"], texts["vanilla"]) and len(set(texts["sps"])) > 8
        refused = CliRunner().invoke(
            app, ["run", "--method", "cos", "--pair", pair, *options, "--out", str(tmp_path / "no")]
        )
        assert refused.exit_code == 2 and "need one vocabulary" in " ".join(refused.output.split())


def suite(folder):
    path = folder / "short.yaml"
    path.write_text("description: One task\ntasks:\n  - {task: pocket_gsm8k, max_new_tokens: 24}\n")
    return path
