"""Texts that go on after end tokens (`--ignore-eos`), as long as their limit."""

from screens import output

from specbench.results.stored import StoredRun


def test_texts_go_on_after_an_end_token(tmp_path):
    """The bundled pair ends its answers after 30 to 50 tokens; stop strings still end a text."""
    out, limit = tmp_path / "run", 80
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Question: Ben has 8 stamps. He buys 3. How many stamps has he?\\nAnswer:"}\n')
    words = ("run", "--prompts", prompts, "--no-apply-chat-template", "--max-new-tokens", limit)
    shown = output(*words, "--method", "sps", "--ignore-eos", "--out", out)
    run = StoredRun(out)
    rows = run.samples().query("not warmup").set_index("method")
    usual = output(*words, "--method", "sps", "--out", tmp_path / "usual")
    ended = StoredRun(tmp_path / "usual").samples().query("not warmup").set_index("method")
    assert set(ended.finish) == {"eos"} and len(ended.tokens["vanilla"]) < limit
    for method in ("vanilla", "sps"):
        assert (rows.finish[method], len(rows.tokens[method])) == ("length", limit)
        before = len(ended.tokens[method])
        assert list(rows.tokens[method][:before]) == list(ended.tokens[method])
    assert list(rows.tokens["sps"]) == list(rows.tokens["vanilla"])
    assert "no end tokens" in shown and "no end tokens" not in usual and run.plan.ignore_eos
