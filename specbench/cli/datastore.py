"""The command that builds datastores for retrieval."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.options import DataDir, folder, known, user_errors


def build_datastore(
    corpus: Annotated[
        list[str],
        typer.Option(
            metavar="FILE|TASK:SPLIT",
            help='JSON Lines with a field "text", a .txt file (its paragraphs are documents), or documents of a task '
            "with their answers, never those it tests; may be repeated",
        ),
    ],
    out: Annotated[Path, typer.Option(help="folder to make")],
    pair: Annotated[
        str | None, typer.Option(help="in whose tokens; default: pocket", autocompletion=known("pairs"))
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="NAME_OR_PATH", help="instead of a pair: in the tokens of this model")
    ] = None,
    documents: Annotated[int | None, typer.Option(min=1, help="documents of each corpus; default: all")] = None,
    data_dir: DataDir = None,
) -> None:
    """Build a datastore in which `rest` looks up how a text may go on.

    `specbench build-datastore --corpus pocket_gsm8k:calibration --corpus texts.jsonl --pair pocket --out store`

    `specbench run --method rest --pair pocket --suite pocket --set rest.datastore=store`
    """
    from specbench import datastore_corpus

    with user_errors():
        datastore_corpus.build_datastore(corpus, pair, tokenizer, out, folder(data_dir), documents)
