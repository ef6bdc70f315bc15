"""The judge of CoSpec's warm-up: its labels against whole texts scored one by one, in its own tokens or another's."""

import json
import math
import random

import oracle
import pytest
import torch
from gates import DEVICE
from two_tokenizers import SIZES, TEXTS, byte_level, pieces, translation

from specbench import config
from specbench.config import SUITES, UserError
from specbench.engine.models.pair import Pair, load_pair
from specbench.engine.translate import Translation, spellings
from specbench_extras.bench.prompts import bundled_prompts
from specbench_extras.cospec.judge import ModelJudge, Reader, load_judge

MADE = {"bytes": byte_level, "pieces": pieces}
DIRECTIONS = (("bytes", "pieces"), ("pieces", "bytes"))


def tiny(architecture: str, vocab: int, seed: int = 3, **sizes: int):
    return oracle.tiny(architecture, seed=seed, vocab=vocab, **sizes).to(DEVICE)


@torch.no_grad()
def whole(model, ids: list[int], start: int) -> float:
    """log p of ids[start:], token by token: a full forward for each, without a cache."""
    result = 0.0
    for at in range(start, len(ids)):
        logits = model(torch.tensor([ids[:at]], device=DEVICE), use_cache=False).logits[0, -1].double()
        result += float(torch.log_softmax(logits, -1)[ids[at]])
    return result


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


class Counted:
    """Notes of each forward of a judge how many tokens it was fed, and whether they were a tree."""

    def __init__(self, judge: ModelJudge) -> None:
        self.fed: list[tuple[int, bool]] = []
        forward = judge.session.forward

        def counted(tokens, **rest):
            self.fed.append((len(tokens), rest.get("parents") is not None))
            return forward(tokens, **rest)

        judge.session.forward = counted


# Its own tokens


@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
def test_labels_are_those_of_candidates_scored_one_by_one(architecture):
    """Round after round of one text, and then of another; Gemma 2's window of 16 is crossed."""
    model, rng = tiny(architecture, 96), random.Random(5)
    judge, seen = ModelJudge(model, 2.0), []
    for text in oracle.prompts(2, length=14, seed=7):
        for block in (6, 1, 9):
            drafted = [rng.randrange(96) for _ in range(block)]
            mismatches = sorted(rng.sample(range(block), (block + 1) // 2))
            targets = [rng.randrange(96) if i in mismatches else token for i, token in enumerate(drafted)]
            marks = judge.labels(text, drafted, targets, mismatches)
            for i, y in zip(mismatches, marks, strict=True):
                before = text + drafted[:i]
                odds = [whole(model, [*before, token], len(before)) for token in (drafted[i], targets[i])]
                assert y == pytest.approx(sigma((odds[0] - odds[1]) / 2), abs=1e-5)
            seen += marks
            text = text + drafted[: block - 1]
    assert max(seen) - min(seen) > 0.3, "labels that are all alike show nothing"


def test_one_forward_a_round_that_feeds_only_what_is_new():
    judge = ModelJudge(tiny("llama", 96), 1.0)
    count, (prompt,) = Counted(judge), oracle.prompts(1, length=20)
    judge.labels(prompt, [1, 2, 3, 4, 5], [1, 9, 3, 8, 5], [1, 3])
    assert count.fed == [(23, False)], "the prompt and what is before the last mismatch"
    judge.labels([*prompt, 1, 2, 3, 8], [6, 7], [9, 7], [0])
    assert count.fed[1:] == [(1, False)], "the target's token"
    assert judge.labels([*prompt, 1, 2, 3, 8], [6, 7], [6, 7], []) == [] and len(count.fed) == 2


def test_a_label_by_hand_and_its_temperature():
    """p(draft) : p(target) = 3 : 1 is a label of 3/4, at twice the temperature of √3 / (1 + √3)."""
    model = tiny("llama", 96)
    head = model.get_output_embeddings()
    model.set_output_embeddings(torch.nn.Linear(head.in_features, 96, dtype=torch.float64).to(DEVICE))
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
        model.get_output_embeddings().bias.zero_()[7] = math.log(3)
    assert ModelJudge(model, 1.0).label([1, 2], 7, 4) == pytest.approx(0.75)
    assert ModelJudge(model, 1.0).label([1, 2], 4, 7) == pytest.approx(0.25)
    assert ModelJudge(model, 2.0).label([1, 2], 7, 4) == pytest.approx(math.sqrt(3) / (1 + math.sqrt(3)))
    assert ModelJudge(model, 1.0).label([1, 2], 4, 4) == 0.5
    assert ModelJudge(model, 1e-4).label([1, 2], 4, 7) == 0 and ModelJudge(model, 1e-4).label([1, 2], 7, 4) == 1
    with torch.no_grad():  # both ruled out
        model.get_output_embeddings().bias[[4, 5]] = -math.inf
    assert ModelJudge(model, 1.0).label([1, 2], 4, 5) == 0.5 and ModelJudge(model, 1.0).label([1, 2], 7, 5) == 1


def test_a_text_too_long_loses_its_beginning_in_steps():
    """64 positions, steps of 16: a text of 70 tokens loses 16, and so does one of 80; one of 64 none."""
    model, (text,) = tiny("llama", 96, max_position_embeddings=64), oracle.prompts(1, length=90)
    for length, cut in ((64, 0), (65, 16), (70, 16), (80, 16), (81, 32)):
        kept = text[cut : length - 1]
        odds = [whole(model, [*kept, token], len(kept)) for token in (5, 11)]
        assert ModelJudge(model, 1.0).label(text[: length - 1], 5, 11) == pytest.approx(
            sigma(odds[0] - odds[1]), abs=1e-5
        )
    judge = ModelJudge(model, 1.0)
    count = Counted(judge)
    for length in (70, 71, 72):
        judge.label(text[: length - 1], 5, 11)
    assert [fed for fed, _ in count.fed] == [53, 1, 1]


def test_what_cannot_be_judged_is_refused():
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="above 0"):
            ModelJudge(tiny("llama", 96), temperature)
    with pytest.raises(ValueError, match="before the candidates"):
        ModelJudge(tiny("llama", 96), 1.0).label([], 1, 2)


# Another tokenizer


def encoded(direction: tuple[str, str], text: str) -> tuple[list[int], list[int]]:
    """A text in the pair's tokens and in the judge's."""
    return tuple(MADE[kind]()(text)["input_ids"] for kind in direction)


@pytest.mark.parametrize("direction", DIRECTIONS, ids=str)
@pytest.mark.parametrize("architecture", ("llama", "gemma2"))
def test_another_tokenizer_reads_each_text_as_it_writes_it(direction, architecture):
    """Every candidate's label is that of its whole text, encoded by the judge's tokenizer."""
    model = tiny(architecture, SIZES[direction[1]])
    judge = ModelJudge(model, 5.0, translation(*direction))
    count, pair, own = Counted(judge), MADE[direction[0]](), MADE[direction[1]]()
    rng, checked = random.Random(1), []
    for text in (TEXTS[0], TEXTS[41]):
        ids = pair(text[:150])["input_ids"]
        words = [i for i in set(ids[1:]) if pair.decode([i]).strip().isalpha()]
        for start in (len(ids) - 20, len(ids) - 12):
            context, drafted = ids[:start], ids[start : start + 6]
            mismatches = [0, 2, 3, 5]
            targets = [rng.choice(words) if i in mismatches else token for i, token in enumerate(drafted)]
            marks = judge.labels(context, drafted, targets, mismatches)
            for i, y in zip(mismatches, marks, strict=True):
                before = context + drafted[:i]
                texts = [pair.decode([*before, last], skip_special_tokens=True) for last in (drafted[i], targets[i])]
                both = [own(text.removeprefix(" "))["input_ids"] for text in texts]  # that space is a tokenizer's
                shared = next((at for at, (a, b) in enumerate(zip(*both, strict=False)) if a != b), min(map(len, both)))
                odds = [whole(model, one, shared) for one in both]
                assert y == pytest.approx(sigma((odds[0] - odds[1]) / 5), abs=1e-5), texts
                checked.append(y)
    assert len(checked) == 16 and max(checked) - min(checked) > 0.3
    assert any(tree for _, tree in count.fed), "some candidates must part within a word"


@pytest.mark.parametrize("direction", DIRECTIONS, ids=str)
def test_the_end_of_a_text_is_the_judges_own_end(direction):
    model = tiny("llama", SIZES[direction[1]])
    ids, own = encoded(direction, "the cat sat on the mat.")
    pair, other = MADE[direction[0]](), MADE[direction[1]]()
    word = (
        pair(" the", add_special_tokens=False)["input_ids"] if direction[0] == "bytes" else pair("the")["input_ids"][1:]
    )
    result = ModelJudge(model, 1.0, translation(*direction)).label(ids, pair.eos_token_id, word[0])
    longer = other("the cat sat on the mat. the")["input_ids"]
    assert len(word) == 1 and longer[: len(own)] == own
    odds = [whole(model, [*own, other.eos_token_id], len(own)), whole(model, longer, len(own))]
    assert result == pytest.approx(sigma(odds[0] - odds[1]), abs=1e-5)


@pytest.mark.parametrize("direction", DIRECTIONS, ids=str)
def test_parts_of_characters_are_bytes_behind_what_is_whole(direction):
    """Each text is, to its last whole character, what the judge's tokenizer writes; then a token for each byte."""
    own, mapping = MADE[direction[1]](), translation(*direction)
    ids, _ = encoded(direction, "It reads: ßç 漢字, 🚀 and so on.")
    reader, bytes_of, whole, parts = Reader(mapping), spellings(own, SIZES[direction[1]]), 0, 0
    for end in range(8, len(ids) + 1):
        (loaded,) = reader.read([ids[:end]], end - 1)
        written = b"".join(one for i in ids[:end] if isinstance(one := mapping.spellings[i], bytes))
        try:
            whole = own(written.decode().removeprefix(" "))["input_ids"]
            assert loaded == whole
        except UnicodeDecodeError:
            assert loaded[: len(whole)] == whole and all(len(bytes_of[i]) == 1 for i in loaded[len(whole) :])
            parts += 1
        spelled = b"".join(one for i in loaded if isinstance(one := bytes_of[i], bytes))
        assert spelled.removeprefix(b" ") == written.removeprefix(b" ")
    assert parts >= 6
    judge = ModelJudge(tiny("llama", SIZES[direction[1]]), 1.0, mapping)
    for start in range(8, len(ids) - 4):
        drafted, targets = ids[start : start + 3], [ids[1], ids[start], ids[-1]]
        assert all(0 <= y <= 1 for y in judge.labels(ids[:start], drafted, targets, [0, 1, 2]))


def test_a_token_that_the_judge_does_not_have_has_a_label():
    judge = ModelJudge(tiny("llama", SIZES["pieces"]), 1.0, translation())
    ids, tool = byte_level()("the cat sat")["input_ids"], byte_level().convert_tokens_to_ids("<|tool|>")
    assert 0 <= judge.label(ids, tool, ids[0]) <= 1


def test_within_the_only_word_a_token_is_put_in_front():
    """ "t" and "a" have no beginning in common, and a tokenizer without a begin token gives none."""
    model, mapping = tiny("llama", SIZES["bytes"]), translation("pieces", "bytes")
    draft, target = (pieces()(letter, add_special_tokens=False)["input_ids"][-1] for letter in "ta")
    ids = [byte_level()(letter)["input_ids"] for letter in "ta"]
    odds = [whole(model, [mapping.stand_in, *one], 1) for one in ids]
    result = ModelJudge(model, 1.0, mapping).label([1], draft, target)
    assert mapping.start == [] and result == pytest.approx(sigma(odds[0] - odds[1]), abs=1e-5)


# Real models


def answered(count: int) -> list[tuple[str, str]]:
    """Bundled grade-school problems with their right answers."""
    lines = (SUITES / "tasks" / "pocket" / "gsm8k_test.jsonl").read_text().splitlines()[:count]
    return list(zip(bundled_prompts("gsm8k", count), (json.loads(line)["answer"] for line in lines), strict=True))


def another(words, number: str) -> str:
    """A number with another first digit that a tokenizer divides alike."""
    divided = [len(i) for i in spelled(words, number)]
    changed = (f"{digit}{number[1:]}" for digit in "123456789" if digit != number[0])
    return next(one for one in changed if [len(i) for i in spelled(words, one)] == divided)


def spelled(words, number: str) -> list[str]:
    return [words.decode([i]) for i in words(f" {number}", add_special_tokens=False)["input_ids"]]


@pytest.mark.parametrize("kind", ("own", "other"))
def test_the_bundled_target_prefers_the_right_digit(pocket, kind):
    """Whatever the pair's tokens are: after "... 2 + 5 =" the right number beats another of as many digits."""
    words = pocket.tokenizer if kind == "own" else byte_level()
    facts = None if kind == "own" else Translation(byte_level(), pocket.tokenizer, (SIZES["bytes"], 2048))
    judge, labels = ModelJudge(pocket.models["target"], 1.0, facts), []
    for prompt, answer in answered(6):
        before, after = answer.split(" = ", 1)
        context = words(f"{prompt} {before} =")["input_ids"]
        number = after.split()[0].rstrip(".")
        right, other = (
            words(f" {one}", add_special_tokens=False)["input_ids"] for one in (number, another(words, number))
        )
        at = next(i for i, (a, b) in enumerate(zip(right, other, strict=True)) if a != b)
        context += right[:at]
        labels.append(judge.label(context, right[at], other[at]))
        assert judge.label(context, other[at], right[at]) == pytest.approx(1 - labels[-1], abs=1e-6)
    assert min(labels) > 0.9, labels


def test_loading(pocket, tmp_path):
    """A model of the pair is that model; another is loaded, by its own tokenizer if it has one; none is an error."""
    judge = load_judge("bundled:target", pocket, 0.7)
    assert judge.session.model is pocket.models["target"] and judge.temperature == 0.7 and judge.reader is None
    small = load_judge("bundled:small", pocket, 1.0, device="cpu")
    assert small.session.model is not pocket.models["draft"] and small.reader is None
    ids = pocket.tokenizer("Question: Sara works 2 hours today")["input_ids"]
    assert 0 < small.label(ids, 300, 301) < 1
    tiny("llama", SIZES["pieces"]).save_pretrained(tmp_path)
    pieces().save_pretrained(tmp_path)
    foreign = load_judge(str(tmp_path), pocket, 1.0, device="cpu")
    assert foreign.reader and 0 < foreign.label(ids, 300, 301) < 1
    own = Pair("made", {"target": foreign.session.model}, pieces())
    assert load_judge(str(tmp_path), own, 1.0, device="cpu").reader is None
    with pytest.raises(UserError, match="cannot load nowhere/none") as failed:
        load_judge("nowhere/none", pocket, 1.0, device="cpu")
    assert "\n" not in str(failed.value)


def test_a_draft_of_another_tokenizer_judges_by_its_translation(pocket, tmp_path):
    tiny("llama", SIZES["pieces"]).save_pretrained(tmp_path)
    pieces().save_pretrained(tmp_path)
    target = config.load_pair("pocket").target
    spec = config.PairSpec(name="mixed", description="", target=target, draft=config.ModelSpec(model=str(tmp_path)))
    pair = load_pair(spec, device="cpu")
    judge = load_judge(str(tmp_path), pair, 1.0)
    assert judge.session.model is pair.models["draft"] and judge.reader
    assert judge.reader.translation is pair.translations["draft"]
