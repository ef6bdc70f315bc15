"""Figures of other tools, which `specbench import TOOL` turns into run folders; a module reads the files of one tool.

Spec-Bench: the answer files of its evaluation scripts, JSON Lines. The importer reads question_id, category, model_id,
and turns, new_tokens, wall_time and accept_lengths of each choice. EAGLE's scripts write the same with `idxs`, the
last round of each turn counted from 0, in place of accept_lengths.
- A question with all its turns is a document; a choice is a repeat.
- An entry of accept_lengths is what one forward of the target committed, including tokens after the end of the text.
  There is none for the prefill. The length of the drafts is unknown.
- new_tokens is the tool's own count. Spec-Bench's script counts the baseline by tokenizing its text again; here both
  counts are the tool's.
- A failed prompt has the text ERROR and the figures of the prompt before it: it becomes an error row. If only an equal
  wall_time suggests a failure, there is a warning.

SGLang: results of bench_serving, with --output-details those of each request, and with `speculative_decoding_stats` its
rounds by step. AIPerf: profile_export.jsonl, and summaries as CSV or JSON. guidellm: a report as JSON. SPEED-Bench's
measurement (specdec_bench): responses with acceptance lengths, or their histogram. SpecForge: results of bench_eagle3.

A kind of file is known by several of its keys (kinds.py), and one of another tool is refused by that tool's name. Files
that say that they were measured otherwise than the baseline's are refused (conditions.py).

vLLM: one of four forms. A document is a request, by its place in the file.
- Results of `vllm bench serve --save-result` (keys of late 2025 up to 0.32), of one pass or, with --append-result, of
  several. Request throughput, latencies (mean, median, p99) and the spec_decode_* sums are kept in the manifest. With
  --save-detailed also input_lens, output_lens, ttfts, itls, generated_texts, errors, and latencies if nothing was
  streamed. The seconds are the client's: those of the prefill include the server's queue. There are no rounds per
  request, and without --save-detailed no documents.
- A scrape of `/metrics` (Prometheus' text): the vllm:spec_decode_* counters, total and by position; with a scrape
  before it, what they grew by. Engines are added up, and each model is a method. There are no documents.
- Accepted lengths by position or by round, with the ids of prompts and texts: see acceptance.py.
- Saved API responses (JSON Lines, a list, or the last chunks of streams) with usage and the experimental `metrics` of
  0.27 up to 0.32: times with --enable-per-request-metrics, metrics.speculative_decoding with
  --per-request-spec-decode-metrics. `detailed` lists every round that drafted, in order; `summary` only counts them.
  vLLM counts accepted drafts before it cuts the text at its end, and leaves out rounds without a draft. So `committed`
  is filled only if it adds up to completion_tokens, as it stands or with a cut in the last round.
"""
