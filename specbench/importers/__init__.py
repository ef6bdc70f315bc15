"""Figures of other tools as run folders, which `show` and `compare` read like any other.

What a file does not tell stays null: metrics then makes NaN of all that needs it. Nothing is judged, so
`scores.parquet` is empty. Two columns of `records.SAMPLES` are for files that tell a whole but not its
parts: `new_tokens` (the first one included) and `wall_seconds` (prefill and decoding together).

Spec-Bench: the answer files of its evaluation scripts, JSON Lines. Read are question_id, category, model_id, and of
each choice turns, new_tokens, wall_time and accept_lengths. EAGLE's own scripts write the same without accept_lengths.
- A question is a document, its turns together; a choice is a repeat.
- An entry of accept_lengths is what one forward of the target committed, whatever follows the end of the text with it.
  There is none for the prefill. How much was drafted is not told.
- new_tokens is the tool's own count. Its script counts the baseline by tokenising texts anew; here both sides count.
- A failed prompt has the text ERROR and the figures of the prompt before it: it is an error row. Where only the same
  wall_time shows it, a warning says so.

vLLM: either of two forms. A document is a request, by its place in the file.
- Results of `vllm bench serve --save-result --save-detailed` (keys of late 2025 up to 0.32), one or,
  with --append-result, several passes: input_lens, output_lens, ttfts, itls, generated_texts, errors, and latencies
  where nothing was streamed. The seconds are the client's: the prefill's hold the server's queue. Rounds are not told
  per request; the spec_decode_* sums are kept in the manifest.
- Saved API responses (JSON Lines, a list, or the last chunks of streams) with usage and the experimental `metrics` of
  0.27 up to 0.32: its times with --enable-per-request-metrics, metrics.speculative_decoding with
  --per-request-spec-decode-metrics. `detailed` tells every round that drafted, in order; `summary` tells their counts.
  Accepted drafts are counted there before the end of the text is cut. So what was committed is told only where it
  adds up to completion_tokens, as it stands or with a cut in the last round; rounds without a draft are not in it.
"""

from collections.abc import Sequence
from pathlib import Path

from specbench.importers import spec_bench, vllm
from specbench.importers.told import write


def import_spec_bench(
    files: Sequence[Path],
    baseline: Path | None = None,
    method: str | None = None,
    pair: str = "spec-bench",
    out: Path | None = None,
    by_category: bool = False,
) -> Path:
    """Make a run folder of Spec-Bench's answer files, one method each, and return it; warnings are printed.

    A method is called as its file's model_id, a single one `method` where that is given. `by_category` makes each
    category a task. Raises UserError, which names file and line, for what is damaged or no such file.
    """
    return write("spec-bench", lambda path: spec_bench.read(path, by_category), files, baseline, method, pair, out)


def import_vllm(
    files: Sequence[Path],
    baseline: Path | None = None,
    method: str | None = None,
    pair: str = "vllm",
    out: Path | None = None,
) -> Path:
    """As `import_spec_bench`, of vLLM's bench results or saved responses; a method is called as its file."""
    return write("vllm", vllm.read, files, baseline, method, pair, out)
