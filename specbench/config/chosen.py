"""The methods that a command line chooses, by name: their settings, variants, and the baselines that join them."""

from collections.abc import Sequence

from specbench.base.errors import UserError
from specbench.config.change import baseline_of, grid, parse_assignments, parse_params
from specbench.config.load import override
from specbench.config.servers import SERVER, VANILLA
from specbench.config.specs import MethodSpec

EACH = "each"  # the baseline of every method is its own

Specs = dict[str, MethodSpec]  # by name


def by_name(methods: Sequence[MethodSpec]) -> Specs:
    """Each method once. Raises UserError if two different ones share a name."""
    specs: Specs = {}
    for spec in methods:
        if specs.get(spec.name, spec) != spec:
            raise UserError(f"two different methods are called {spec.name}; rename the file of one")
        specs[spec.name] = spec
    return specs


def assigned(specs: Specs, assignments: Sequence[str]) -> Specs:
    """The methods with the settings that `--set METHOD.KEY=VALUE` changes, in all variants of METHOD."""
    specs = dict(specs)
    for method, settings in parse_assignments(assignments).items():
        variants = [name for name in specs if name == method or name.startswith(f"{method}[")]
        if not variants:
            raise UserError(f"--set {method}.…: this run has no method {method!r}; it has {', '.join(specs)}")
        for name in variants:  # a setting that a variant is named after stays
            changes = {key: value for key, value in settings.items() if f"{key}=" not in name}
            specs[name] = override(specs[name], changes)
    return specs


def swept(specs: Specs, params: Sequence[str], common: MethodSpec | None, baseline: str | None) -> Specs:
    """The common baseline as it is, and every other method as its variants."""
    kept = [spec for spec in specs.values() if spec == common]
    others = [spec for spec in specs.values() if spec != common]
    if not others or (baseline == EACH and not any(spec.settings for spec in others)):
        raise UserError(f"{[*kept, *others][0].name} is the baseline and is not swept; choose another --method")
    axes = parse_params(params)
    variants = [variant for spec in others for variant in grid(spec, axes)]
    return {spec.name: spec for spec in [*kept, *variants]}


def with_baselines(specs: Specs) -> tuple[Specs, dict[str, str]]:
    """The methods after the baselines that they need, each once, and the name of everyone's baseline.

    A method that shares no setting with its baseline takes the baseline's variant that the other methods have, if they
    all have the same one.
    """
    by_identity = {spec.identity: spec for spec in specs.values()}
    bases = {name: baseline_of(spec) for name, spec in specs.items() if spec.method != SERVER}
    bases = {name: by_identity.get(base.identity, base) for name, base in bases.items()}
    sharing_none = [
        name for name, spec in specs.items() if name in bases and not spec.settings.keys() & bases[name].settings.keys()
    ]
    for name in sharing_none:
        others = [*specs.values(), *(base for other, base in bases.items() if other not in sharing_none)]
        variants = {spec.identity: spec for spec in others if spec.method == bases[name].method}
        if len(variants) == 1:
            (bases[name],) = variants.values()
    for name, base in bases.items():
        same = specs.get(base.name)
        if same and same.method == SERVER:
            raise UserError(f"{name} needs {base.name} decoding here as its baseline; give the server another name")
        if same and same.identity != base.identity:
            raise UserError(
                f"{name} needs {base.name} with its own settings as the baseline, and this run has another "
                f"{base.name}; give both the same settings, or --baseline {base.name}"
            )
    methods = {spec.name: spec for spec in [*bases.values(), *specs.values()]}
    return methods, {name: bases[name].name if name in bases else name for name in methods}


def of_servers(specs: Specs) -> dict[str, str]:
    """Each server's baseline: the server called vanilla, else vanilla decoding here, else itself."""
    plain = [name for name, spec in specs.items() if VANILLA in (spec.method, spec.method == SERVER and name)]
    plain.sort(key=lambda name: specs[name].method != SERVER)
    return {name: (plain or [name])[0] for name, spec in specs.items() if spec.method == SERVER}
