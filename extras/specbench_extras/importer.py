"""The template of importers of released heads: read the files, map names, check shapes, publish.

An importer derives from `Importer`: a table of names and shapes, and what is its own. Its module ends in
`import_head = MyImporter.import_head`, which the entry point `KIND-head` finds.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import Tensor

from specbench.base import files
from specbench.base.untrusted import read_object
from specbench.config import UserError, load_pair, validated
from specbench.engine.models.heads import Head, Reads, write_head
from specbench.engine.models.pair import Pair
from specbench.engine.models.pair import load_pair as load_models
from specbench_extras.released import LayerConfig, check_tensors, read_tensors
from specbench_extras.released_forms import in_one_form

Form = TypeVar("Form")
Tensors = Mapping[str, Tensor]
Shapes = dict[str, tuple[int, ...]]
Fitted = tuple[dict[str, Tensor], dict[str, Any]]  # the tensors of a head file, and what it says of them, JSON-like


class Importer(ABC, Generic[Form]):
    """An importer of heads of one form, each of a kind."""

    kinds: Sequence[str]  # of the head files that it writes; the first is the default
    reads: Reads = "target"  # the model whose states a head reads

    def __init__(self, kind: str = "") -> None:
        self.kind = kind or self.kinds[0]

    @property
    def what(self) -> str:
        """What such heads are called, in messages; by default as their kind."""
        return self.kind

    @property
    def remedy(self) -> str:
        """What to do about a folder of something else."""
        return f"name the folder of a head that the authors of {self.what} released, or one of the same form"

    @classmethod
    def import_head(cls, checkpoint: str | Path, pair: str, out: Path | None, kind: str = "") -> Path:
        """Write a released head as a head file for a pair, and return its path.

        Raises UserError for a checkpoint that holds no such head, and for a pair that it does not fit.
        """
        importer = cls(kind)
        folder, name = importer.place(checkpoint)
        form, stored = importer.read(folder)
        path = out or Path(f"{importer.kind}-{name.rsplit('/', 1)[-1]}.safetensors")
        files.refuse_existing(path)
        loaded = load_models(load_pair(pair))
        try:
            tensors, told = importer.fitted(folder, form, stored, loaded)
            trained = {"released": name, **told}
            importer.check(Head(importer.kind, tensors, trained), loaded)
        except (ValueError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())[:120]
            raise UserError(f"{checkpoint} cannot be used: {reason}; {importer.remedy}") from None
        write_head(path, importer.kind, tensors, loaded, trained, importer.reads)
        return path

    def place(self, checkpoint: str | Path) -> tuple[Path, str]:
        """The folder of a checkpoint, and its name."""
        return Path(checkpoint), Path(checkpoint).resolve().name

    @abstractmethod
    def read(self, folder: Path) -> tuple[Form, Tensors]:
        """What config.json says, and the tensors by their names there. Raises UserError."""

    @abstractmethod
    def fitted(self, folder: Path, form: Form, stored: Tensors, pair: Pair) -> Fitted:
        """A head file for a pair.

        Raises UserError for a head that does not fit the pair, and ValueError for one that cannot be used.
        """

    def check(self, head: Head, pair: Pair) -> None:
        """Raise UserError or ValueError if the method cannot read a head."""


Layers = TypeVar("Layers", bound=LayerConfig)


class LayerImporter(Importer[Layers]):
    """An importer of heads whose config.json says the sizes of their layers, from which all shapes follow."""

    config: type[Layers]
    optional: Sequence[str] = ()  # further tensors that a checkpoint may have, and that are left out
    told_as = ""  # the kind that speculators calls such heads, where it is another

    def read(self, folder: Path) -> tuple[Layers, Tensors]:
        stored, path = self.named(read_tensors(folder)), folder / "config.json"
        facts = in_one_form(read_object(path), str(path), self.told_as or self.kind)
        config = validated(self.config, facts, str(path))
        try:
            wanted = self.shapes(config, stored)
        except ValueError as error:
            raise UserError(f"{path}: {error}; {self.remedy}") from None
        check_tensors(folder, stored, wanted, self.what, self.remedy, self.optional)
        return config, stored

    def named(self, stored: Tensors) -> Tensors:
        """The tensors by their names in `shapes`."""
        return stored

    @abstractmethod
    def shapes(self, config: Layers, stored: Tensors) -> Shapes:
        """The tensors that a checkpoint must have. Raises ValueError for a head that cannot be used here."""
