"""The command that builds datastores for retrieval."""

from pathlib import Path
from typing import Annotated

from typer import Option

from specbench.cli.errors import check_names, user_errors
from specbench.cli.groups import fetching, folder
from specbench.cli.options import DataDir, known


def build_datastore(
    corpus: Annotated[
        list[str],
        Option(
            metavar="FILE|TASK:SPLIT",
            help='JSON Lines with a field "text", a .txt file (its paragraphs are documents), or documents of a task '
            "with their answers (never those that it evaluates); may be repeated",
        ),
    ],
    out: Annotated[Path, Option(help="folder to make")],
    pair: Annotated[
        str | None, Option(help="the pair whose tokens to use; default: pocket", autocompletion=known("pairs"))
    ] = None,
    tokenizer: Annotated[
        str | None, Option(metavar="NAME_OR_PATH", help="instead of a pair: use the tokens of this model")
    ] = None,
    documents: Annotated[int | None, Option(min=1, help="documents of each corpus; default: all")] = None,
    data_dir: DataDir = None,
) -> None:
    """Build a datastore, in which the method `rest` looks up continuations of a text.

    `specbench build-datastore --corpus pocket_gsm8k:calibration --corpus texts.jsonl --pair pocket --out store`

    `specbench run --method rest --pair pocket --suite pocket --set rest.datastore=store`
    """
    with user_errors(), fetching():
        check_names(pair)
        from specbench_extras.datastore import build  # after the names are checked, as this import takes seconds

        build.build_datastore(corpus, pair, tokenizer, out, folder(data_dir), documents)
