"""The command `new`: files to begin an own method with, which work as they are."""

import keyword
from enum import Enum
from pathlib import Path
from string import Template
from typing import Annotated

from typer import Argument, Option

from specbench import config
from specbench.base import files
from specbench.base.console import say
from specbench.cli.errors import user_errors
from specbench.config import UserError

TEMPLATES = Path(__file__).with_name("templates")


class NewFile(str, Enum):
    """What `new` writes."""

    method = "method"
    length = "length"
    output = "output"
    combination = "combination"


def new(
    part: Annotated[
        NewFile, Argument(help="a method, a rule for draft lengths, a draft's output layer, or a combination")
    ],
    name: Annotated[str, Argument(help="its name, a valid Python name", show_default=False)],
    out: Annotated[Path, Option(help="the folder to write into")] = Path("."),
) -> None:
    """Write starter files for a method of your own: NAME.py, its settings in NAME.yaml, and a test.

    Likewise for a draft length rule, an output layer, or a combination (without YAML). The files work as they are.
    `specbench audit` tests whether your method is lossless.

    `specbench new method mine`

    `specbench new length patient --out drafts`
    """
    with user_errors():
        if not name.isidentifier() or keyword.iskeyword(name) or not name.isascii():
            raise UserError(f"{name!r} is not a valid Python name; take letters, digits and _, such as my_method")
        if part is not NewFile.combination and name in config.names("methods"):
            raise UserError(f"specbench brings a method called {name}; take another name")
        if not out.is_dir():
            raise UserError(f"there is no folder {out}; make it, or choose another --out")
        values = {"name": name, "class_name": "".join(word.capitalize() for word in name.split("_"))}
        combines = part is NewFile.combination
        texts = {f"{name}.py": part.value, f"test_{name}.py": "test_combination" if combines else "test_method"}
        texts |= {} if combines else {f"{name}.yaml": f"{part.value}_yaml"}
        if there := [file for file in texts if (out / file).exists()]:
            raise UserError(f"{out / there[0]} exists; take another name, or another --out")
        for file, template in texts.items():
            files.write_text(out / file, Template((TEMPLATES / f"{template}.txt").read_text()).substitute(values))
            say(f"written: {out / file}")
        path = out / f"{name}.py"
        if combines:
            say(f"next:    specbench run --method cos --set cos.combine={path}:combine --suite math --limit 20")
        else:
            say(f"next:    specbench audit --method {path} --documents 3 --draws 25")
            say(f"         specbench run --method {path} --suite math --limit 20")
        say(f"         python -m pytest {out / f'test_{name}.py'}")
