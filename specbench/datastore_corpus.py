"""What a datastore is built of: texts of files, and tasks' documents with their reference answers, never test ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from specbench import config
from specbench.config import OWN_PAIR, ModelSpec, PairSpec, UserError
from specbench.console import console, progress
from specbench.datastore_build import build
from specbench.models import load_tokenizer, vocabulary_hash
from specbench.plan import Plan
from specbench.run import load_tasks
from specbench.train.documents import Source, named
from specbench.untrusted import is_file, read_lines, regular, text_of

BATCH = 256  # texts that are made token ids at a time


@dataclass(frozen=True)
class Reading:
    """How corpora are read: whose tokens, how many documents of each (None: all), where local data sets are."""

    pair: PairSpec
    tokenizer: PreTrainedTokenizerBase
    documents: int | None
    data_dir: str | None


def build_datastore(
    corpora: Sequence[str],
    pair: str | None,
    tokenizer: str | None,
    out: Path,
    data_dir: str | None = None,
    documents: int | None = None,
) -> None:
    """Build a datastore of files and TASK:SPLIT in the tokens of a pair, or of a tokenizer alone.

    Every document ends with the tokenizer's end token, if it has one, so that a draft may end a text. Raises UserError.
    """
    if pair and tokenizer:
        raise UserError("build-datastore takes --pair or --tokenizer, not both")
    if not corpora:
        raise UserError("build-datastore needs a --corpus: FILE.jsonl, FILE.txt or TASK:SPLIT")
    if out.exists():
        raise UserError(f"{out} exists; choose another --out")
    sources = {text: _source(text) for text in dict.fromkeys(corpora)}
    own = PairSpec(name=OWN_PAIR, description="", target=ModelSpec(model=tokenizer)) if tokenizer else None
    spec = own or config.load_pair(pair or "pocket")
    reading = Reading(spec, load_tokenizer(spec.target), documents, data_dir)
    counts: list[dict[str, Any]] = []
    about = build(
        (document for text, source in sources.items() for document in _documents(text, source, reading, counts)),
        out,
        max(reading.tokenizer.get_vocab().values()) + 1,
        vocabulary_hash(reading.tokenizer),
        {"tokens of": tokenizer or spec.name, "corpora": counts},
    )
    for one in counts:
        told = f"{one['corpus']}: {one['documents']} documents, {one['tokens']} tokens"
        console.print(told, highlight=False, markup=False)
    megabytes = sum(about.sizes.values()) / 1e6
    console.print(
        f"{about.tokens} tokens, {about.shards} shard{'s' * (about.shards > 1)}, {megabytes:.1f} MB: {out}\n"
        f"next: specbench run --method rest --pair {'PAIR' if tokenizer else spec.name} --suite SUITE "
        f"--set rest.datastore={out}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _source(text: str) -> Path | Source:
    """A file, or a split of a task."""
    if is_file(Path(text)):
        return Path(text)
    if ":" not in text:
        raise UserError(f"there is no file {text}; give --corpus FILE.jsonl, FILE.txt or TASK:SPLIT")
    try:
        return named([text])[0]
    except UserError as error:
        raise UserError(str(error).replace("--data", "--corpus")) from None


def _documents(text: str, source: Path | Source, reading: Reading, counts: list[dict[str, Any]]) -> Iterator[list[int]]:
    """Token ids of a corpus' documents; notes how many there were in `counts`, in place."""
    name = text if isinstance(source, Source) else source.name
    count: dict[str, Any] = {"corpus": name, "documents": 0, "tokens": 0}
    counts.append(count)
    found = _of_task(source, reading) if isinstance(source, Source) else _of_file(source)
    texts = islice((one for one in found if one.strip()), reading.documents)
    end = reading.tokenizer.eos_token_id
    while batch := list(islice(texts, BATCH)):
        for ids in reading.tokenizer(batch, verbose=False)["input_ids"]:
            document = ids if end is None or ids[-1:] == [end] else [*ids, end]
            count["documents"] += 1
            count["tokens"] += len(document)
            yield document
    if not count["documents"]:
        raise UserError(f"{text} has no text; leave it out, or give another --corpus")


def _of_file(path: Path) -> Iterator[str]:
    """The texts of JSON Lines with a field `text`; of a .txt file its paragraphs, between empty lines."""
    paragraph: list[str] = []
    plain = path.suffix == ".txt"
    remedy = ("a .txt file is UTF-8" if plain else 'write a JSON object with a "text"') + ", or leave the line out"
    with progress(f"reading {path.name}", regular(path)) as advance:
        for number, line, size in read_lines(path, remedy=remedy):
            advance(size)
            if not plain and not line.strip():
                continue
            text = line if plain else text_of(line, f"{path}, line {number}", remedy)
            if not plain:
                yield text
            elif text.strip():
                paragraph.append(text)
            elif paragraph:
                yield "".join(paragraph)
                paragraph = []
        yield "".join(paragraph)


def _of_task(source: Source, reading: Reading) -> Iterator[str]:
    """Prompts without examples, each with its reference answer, as lm-eval joins them for few-shot examples."""
    line = source.line.model_copy(update={"fewshot": 0})
    plan = Plan(
        pair=reading.pair,
        methods=(),
        baseline=None,
        suite=f"{source.task}:{source.split}",
        tasks=(line,),
        limit=reading.documents,
        split=source.split,
        data_dir=reading.data_dir,
    )
    tasks = load_tasks(plan, None)
    task, instances = tasks._loaded[source.task], tasks._instances[source.task]
    with progress(f"reading {source.task}", len(instances)) as advance:
        for instance in instances:
            answer = task.doc_to_target(instance.doc)
            answer = answer[0] if isinstance(answer, list) and answer else answer
            if not isinstance(answer, str):
                raise UserError(f"{source.task} has no reference answers in words; give another --corpus")
            advance(1)
            yield f"{instance.args[0]}{task.config.target_delimiter}{answer}"
